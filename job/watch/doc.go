// Package watch publishes a run while it trains: a page in a browser, metrics for Prometheus, and
// requests to save or to trace.
//
// A State follows the run as a report.Observer and keeps a bounded history. A Server answers
// requests from it. Clients pull: training appends to the State and never waits for them, and
// responses are copies or immutable. The same page, with its data inline, is the report of a
// finished run.
//
// The page is static and has a content security policy; data reaches it as JSON and is only ever
// set as text.
//
// Begin with state.go and server.go.
package watch
