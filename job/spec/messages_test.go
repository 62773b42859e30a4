package spec

import "zeroth/tests/messages"

// said has the messages about wrong jobs.
var said = messages.Open()
