package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
)

// configCmd is `ftproxy config`: every variable and every option there is.
type configCmd struct {
	Markdown bool `help:"Print Markdown tables, as in the README."`
}

// Run prints to standard output.
func (c *configCmd) Run() error {
	if c.Markdown {
		return writeMarkdown(os.Stdout)
	}
	return writeText(os.Stdout)
}

// writeMarkdown writes the tables that stand in the README.
func writeMarkdown(w io.Writer) error {
	var s strings.Builder
	help := variableHelp()
	s.WriteString("| variable | default | unit or values | what it is |\n|---|---|---|---|\n")
	for _, f := range fieldsOf(&config{}, "env") {
		if f.group != "" {
			fmt.Fprintf(&s, "| **%s** | | | |\n", f.group)
		}
		fmt.Fprintf(&s, "| `%s%s`%s | %s | %s | %s |\n", prefix, f.key, fileNote(f), code(f.def), f.unit, help[f.key])
	}
	for _, g := range optionGroups() {
		if len(g.fields) == 0 {
			continue
		}
		fmt.Fprintf(&s, "\n**%s** `%s`\n\n", g.title, g.form)
		s.WriteString("| option | default | unit or values | what it is |\n|---|---|---|---|\n")
		for _, f := range g.fields {
			fmt.Fprintf(&s, "| `%s` | %s | %s | %s |\n", f.key, code(f.def), f.unit, optionHelp()[g.kind+"."+f.key])
		}
	}
	_, err := io.WriteString(w, s.String())
	return err
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

func fileNote(f field) string {
	if f.secret {
		return " or `" + prefix + f.key + "_FILE`"
	}
	return ""
}

// writeText writes the same for a terminal.
func writeText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var s strings.Builder
	help := variableHelp()
	for _, f := range fieldsOf(&config{}, "env") {
		if f.group != "" {
			fmt.Fprintf(&s, "\n%s\t\t\t\n", strings.ToUpper(f.group))
		}
		fmt.Fprintf(&s, "%s%s\t%s\t%s\t%s\n", prefix, f.key, f.def, f.unit, help[f.key])
		if f.secret {
			fmt.Fprintf(&s, "%s%s_FILE\t\tpath\ta file that holds it\n", prefix, f.key)
		}
	}
	for _, g := range optionGroups() {
		fmt.Fprintf(&s, "\n%s\t%s\t\t\n", strings.ToUpper(g.title), g.form)
		for _, f := range g.fields {
			fmt.Fprintf(&s, "  ?%s=\t%s\t%s\t%s\n", f.key, f.def, f.unit, optionHelp()[g.kind+"."+f.key])
		}
	}
	if _, err := io.WriteString(t, s.String()); err != nil {
		return err
	}
	return t.Flush()
}

// optionGroup is the options of one kind of URL; the scheme with TLS has the same.
type optionGroup struct {
	kind, title, form string
	fields            []field
}

func optionGroups() []optionGroup {
	var all []optionGroup
	for _, side := range []struct {
		name    string
		schemes []scheme
	}{{"source", sourceSchemes()}, {"sink", sinkSchemes()}} {
		for _, s := range side.schemes {
			if s.secure() {
				continue
			}
			all = append(all, optionGroup{
				kind: side.name + "." + s.name, title: s.name + " " + side.name, form: s.form,
				fields: fieldsOf(s.options(), "query"),
			})
		}
	}
	return all
}
