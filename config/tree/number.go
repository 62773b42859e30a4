package tree

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// Octal matches digits that some parsers read as octal, others as decimal.
var Octal = regexp.MustCompile(`^[-+]?0[0-9]`)

// Whole parses an integer.
func Whole(n *Node) (x int64, wrong string) {
	switch {
	case n.Kind != Scalar || n.Quoted:
		return 0, n.String() + " is not a whole number"
	case Octal.MatchString(n.Text):
		return 0, n.String() + " begins with a 0, which may mean octal"
	}
	x, err := strconv.ParseInt(n.Text, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, n.String() + " is too large"
	case err != nil:
		if f, wrong := Number(n); wrong == "" && f == math.Trunc(f) && math.Abs(f) < 1e15 {
			return 0, fmt.Sprintf("%s is not a whole number: write %.0f", n, f)
		}
		return 0, n.String() + " is not a whole number"
	}
	return x, ""
}

// decimal matches numbers without hexadecimal digits and underscores.
var decimal = regexp.MustCompile(`^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$`)

// Number parses a finite float.
func Number(n *Node) (x float64, wrong string) {
	if n.Kind != Scalar || n.Quoted {
		return 0, n.String() + " is not a number"
	}
	switch strings.ToLower(strings.TrimLeft(n.Text, "+-.")) {
	case "nan":
		return 0, n.Text + " is not a usable number"
	case "inf", "infinity":
		return 0, n.Text + " is not finite"
	}
	x, err := strconv.ParseFloat(n.Text, 64)
	mantissa, _, _ := strings.Cut(strings.ToLower(n.Text), "e")
	percent, share := strings.CutSuffix(n.Text, "%")
	switch {
	case share && decimal.MatchString(percent):
		x, _ := strconv.ParseFloat(percent, 64)
		return 0, n.String() + " is not a number: write " + strconv.FormatFloat(x/100, 'g', -1, 64)
	case !decimal.MatchString(n.Text):
		return 0, n.String() + " is not a number"
	case Octal.MatchString(n.Text):
		return 0, n.String() + " begins with a 0, which may mean octal"
	case err != nil:
		return 0, n.String() + " is too large"
	case x == 0 && strings.ContainsAny(mantissa, "123456789"):
		return 0, n.String() + " is too small"
	}
	return x, ""
}

// Listed returns String, or for a list its length.
func (n *Node) Listed() string {
	if n.Kind == List {
		return fmt.Sprintf("a list of %d items", len(n.Items))
	}
	return n.String()
}
