package data

import "zeroth/tests/messages"

// said has the messages about wrong tokenizers, token files and records.
var said = messages.Open()
