package foreign

import "zeroth/tests/messages"

// said has the messages about damaged checkpoints.
var said = messages.Open()
