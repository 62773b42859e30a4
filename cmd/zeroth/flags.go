package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// arguments are those of a command that takes so many, as its Use line says.
func arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if least <= len(args) && len(args) <= most {
			return nil
		}
		return fmt.Errorf("the form is: %s (arguments: %d)", cmd.UseLine(), len(args))
	}
}

// whole is a flag that is a whole number in decimal. pflag's own reads 010 as 8
// and 0x10 as 16, which a job file refuses.
type whole[T int | uint64] struct {
	p     *T
	parse func(string) (T, error)
}

// Set implements pflag.Value.
func (v whole[T]) Set(s string) error {
	digits := strings.TrimLeft(s, "+-")
	n, err := v.parse(s)
	switch {
	case len(digits) > 1 && digits[0] == '0':
		return errors.New("it begins with a 0, which may mean octal")
	case errors.Is(err, strconv.ErrRange):
		return errors.New("it is out of range")
	case err != nil:
		return errors.New("want a whole number")
	}
	*v.p = n
	return nil
}

// Type implements pflag.Value: what help calls the value.
func (v whole[T]) Type() string { return "int" }

// String implements pflag.Value.
func (v whole[T]) String() string {
	if v.p == nil {
		return "0"
	}
	return strconv.FormatInt(int64(*v.p), 10)
}

func intVar(f *pflag.FlagSet, p *int, name string, value int, usage string) {
	*p = value
	f.Var(whole[int]{p, strconv.Atoi}, name, usage)
}

func uintVar(f *pflag.FlagSet, p *uint64, name string, value uint64, usage string) {
	*p = value
	f.Var(whole[uint64]{p, func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) }}, name, usage)
}
