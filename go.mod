module zeroth

go 1.26.0

require (
	github.com/bmatcuk/doublestar/v4 v4.9.1
	github.com/google/go-cmp v0.7.0
	github.com/tiktoken-go/tokenizer v0.10.0
	go.uber.org/goleak v1.3.0
	golang.org/x/sys v0.49.0
	pgregory.net/rapid v1.3.0
)

require github.com/dlclark/regexp2/v2 v2.5.1 // indirect
