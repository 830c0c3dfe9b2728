package main

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
)

// field is what a struct's tags say about one of its fields; the variables and the options of URLs share it.
type field struct {
	key, def, unit, example, group string
	oneof                          []string
	minimum                        string
	secret, later                  bool
	name                           string // of the struct's field
	index                          int
}

// fieldsOf lists the fields of the struct that v points to which have the tag.
func fieldsOf(v any, tag string) []field {
	var all []field
	t := reflect.TypeOf(v).Elem()
	for i := range t.NumField() {
		f := t.Field(i)
		key, ok := f.Tag.Lookup(tag)
		if !ok {
			continue
		}
		x := field{
			key: key, def: f.Tag.Get("envDefault"), unit: f.Tag.Get("unit"),
			example: f.Tag.Get("example"), later: f.Tag.Get("later") == "true", group: f.Tag.Get("group"),
			oneof: strings.Fields(f.Tag.Get("oneof")), minimum: f.Tag.Get("min"), secret: f.Tag.Get("secret") == "true",
			name: f.Name, index: i,
		}
		if x.unit == "" {
			x.unit = unitOf(f.Type, x.oneof)
		}
		if f.Type.Kind() == reflect.Bool {
			x.def = "false"
		}
		if x.example == "" {
			x.example = x.def
		}
		if x.example == "" && len(x.oneof) > 0 {
			x.example = x.oneof[0]
		}
		all = append(all, x)
	}
	return all
}

func unitOf(t reflect.Type, oneof []string) string {
	switch {
	case len(oneof) > 0:
		return strings.Join(oneof, ", ")
	case t.Kind() == reflect.Bool:
		return "true, false"
	}
	return ""
}

// parse fills the struct that v points to from values by the tag, and reports what it cannot read, by key.
func parse(v any, tag string, values map[string]string, bad func(f field, problem string)) {
	fields := fieldsOf(v, tag)
	given := maps.Clone(values)
	maps.DeleteFunc(given, func(_, value string) bool { return value == "" })
	if len(given) == 0 {
		given = map[string]string{"": ""} // an empty map would mean the process's environment
	}
	err := env.ParseWithOptions(v, env.Options{TagName: tag, Environment: given})
	aggregate, _ := errors.AsType[env.AggregateError](err)
	failed := map[string]bool{}
	for _, one := range aggregate.Errors {
		if p, ok := errors.AsType[env.ParseError](one); ok {
			i := slices.IndexFunc(fields, func(f field) bool { return f.name == p.Name })
			bad(fields[i], unreadable(given[fields[i].key], p))
			failed[p.Name] = true
			continue
		}
		panic(one) // the struct's tags are wrong
	}
	for _, f := range fields {
		if value, ok := given[f.key]; ok && !failed[f.name] {
			if problem := f.check(value, reflect.ValueOf(v).Elem().Field(f.index).Interface()); problem != "" {
				bad(f, problem)
			}
		}
	}
}

func unreadable(value string, p env.ParseError) string {
	switch p.Type {
	case reflect.TypeFor[time.Duration]():
		return fmt.Sprintf("%q is not a duration, such as 500ms, 20s or 1h", value)
	case reflect.TypeFor[bool]():
		return fmt.Sprintf("%q is neither true nor false", value)
	case reflect.TypeFor[int]():
		return fmt.Sprintf("%q is not a whole number", value)
	}
	return p.Err.Error()
}

// check judges a value that could be read.
func (f field) check(value string, parsed any) string {
	if f.later {
		return "refused: operators come with a later version. Unset it: without an operator ftproxy is a relay from its " +
			"sources to its sinks"
	}
	if len(f.oneof) > 0 && !slices.Contains(f.oneof, value) {
		problem := fmt.Sprintf("%q is none of %s", value, strings.Join(f.oneof, ", "))
		if name, ok := nearest(value, f.oneof); ok {
			problem += "; did you mean " + name + "?"
		}
		return problem
	}
	switch x := parsed.(type) {
	case time.Duration:
		if x <= 0 {
			return fmt.Sprintf("%q is not above 0", value)
		}
	case byteSize:
		if minimum, err := strconv.Atoi(f.minimum); err == nil && x < byteSize(minimum) {
			return fmt.Sprintf("%d is below %d", x, minimum)
		}
	case int:
		if minimum, err := strconv.Atoi(f.minimum); err == nil && x < minimum {
			return fmt.Sprintf("%d is below %d", x, minimum)
		}
	}
	return ""
}
