package jsonread_test

import "zeroth/tests/messages"

// said has the messages about wrong JSON.
var said = messages.Open()
