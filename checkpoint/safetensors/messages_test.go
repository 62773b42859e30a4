package safetensors

import "zeroth/tests/messages"

// said has the messages about wrong files.
var said = messages.Open()
