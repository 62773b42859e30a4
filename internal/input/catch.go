package input

// Catch, when deferred, handles a panic with an error of type E, with which readers end their
// callers. Other panics go on.
func Catch[E error](handle func(E)) {
	switch e := recover().(type) {
	case nil:
	case E:
		handle(e)
	default:
		panic(e)
	}
}
