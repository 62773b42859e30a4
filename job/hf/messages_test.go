package hf

import "zeroth/tests/messages"

// said has the messages about models that are refused.
var said = messages.Open()
