package torchfile

import "zeroth/tests/messages"

// said has the messages about pickles that are refused.
var said = messages.Open()
