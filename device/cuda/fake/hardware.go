//go:build cuda && gpu

package fake

// onHardware is true: tests run on the installed driver.
const onHardware = true
