package chat

import (
	"fmt"
	"strings"
	"time"
)

// layouts maps the directives of strftime_now to layouts of package time.
var layouts = map[byte]string{
	'd': "02", 'b': "Jan", 'B': "January", 'Y': "2006", 'y': "06", 'm': "01", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM",
	'A': "Monday", 'a': "Mon", 'j': "002", 'e': "_2",
}

// At returns the template function strftime_now for a given time.
func At(now time.Time) Function {
	return func(arguments ...Value) (Value, error) {
		format, ok := Value(nil), len(arguments) == 1
		if ok {
			format = arguments[0]
		}
		text, ok := format.(string)
		if !ok || len(text) > maxName {
			return nil, fmt.Errorf("strftime_now takes a format of at most %d bytes", maxName)
		}
		var b strings.Builder
		for i := 0; i < len(text); i++ {
			if text[i] != '%' || i+1 == len(text) {
				b.WriteByte(text[i])
				continue
			}
			i++
			layout, known := layouts[text[i]]
			switch {
			case text[i] == '%':
				b.WriteByte('%')
			case !known:
				return nil, fmt.Errorf("strftime_now: %%%c is not supported", text[i])
			default:
				b.WriteString(now.Format(layout))
			}
		}
		return b.String(), nil
	}
}
