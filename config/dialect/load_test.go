package dialect_test

import (
	"zeroth/config/dialect"
	"zeroth/job/spec"
)

func init() {
	dialect.LoadJob = func(file string, sets []string) (dialect.Loaded, error) {
		c, err := spec.Load(file, sets)
		if err != nil {
			return dialect.Loaded{}, err
		}
		return dialect.Loaded{c.Notes, string(c.YAML()), c.Text}, nil
	}
}
