//go:build cuda && !gpu

package fake

// onHardware is false: tests run on the fakes.
const onHardware = false
