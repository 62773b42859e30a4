package forecast

import "zeroth/tests/messages"

// said has the messages about wrong descriptions of machines.
var said = messages.Open()
