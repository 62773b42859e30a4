//go:build cuda && gpu

package fake

// onHardware has tests run on the driver there is, whatever it is.
const onHardware = true
