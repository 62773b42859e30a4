package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// arguments accepts from least to most arguments. The error shows the command's Use line.
func arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if least <= len(args) && len(args) <= most {
			return nil
		}
		return fmt.Errorf("%s given; usage: %s", count(len(args), "argument"), cmd.UseLine())
	}
}

// count returns a number with a noun: "1 folder", "2 folders".
func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprint(n, " ", noun)
}

// decimal is a flag's value that must be written in decimal. pflag would read 010 as 8
// and 0x10 as 16, which are errors in a job file.
type decimal[T int | uint64] struct {
	p     *T
	parse func(string) (T, error)
}

// Set implements pflag.Value.
func (v decimal[T]) Set(s string) error {
	digits := strings.TrimLeft(s, "+-")
	n, err := v.parse(s)
	switch {
	case len(digits) > 1 && digits[0] == '0':
		return errors.New("a leading 0 could mean octal; leave it out")
	case errors.Is(err, strconv.ErrRange):
		return errors.New("it is out of range")
	case err != nil:
		return errors.New("want a whole number")
	}
	*v.p = n
	return nil
}

// Type returns the name of the value in help.
func (v decimal[T]) Type() string { return "int" }

// String implements pflag.Value.
func (v decimal[T]) String() string {
	if v.p == nil {
		return "0"
	}
	return strconv.FormatInt(int64(*v.p), 10)
}

func intVar(f *pflag.FlagSet, p *int, name string, value int, usage string) {
	*p = value
	f.Var(decimal[int]{p, strconv.Atoi}, name, usage)
}

func uintVar(f *pflag.FlagSet, p *uint64, name string, value uint64, usage string) {
	*p = value
	f.Var(decimal[uint64]{p, func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) }}, name, usage)
}
