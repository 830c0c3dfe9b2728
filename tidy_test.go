// Package tidy_test checks what linters cannot say about the project's files.
package tidy_test

import (
	"bufio"
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const maxLines = 500

var (
	sleep    = regexp.MustCompile(`\btime\.Sleep\(`)
	unowned  = regexp.MustCompile(`\b(TODO\b[^(]|TODO$|FIXME|XXX)`)
	variable = regexp.MustCompile(`\bFTPROXY_[A-Z0-9_]*[A-Z0-9]`)

	// A file of the project speaks of the project: not of a machine, a download mirror, or papers that are not in it.
	foreign = regexp.MustCompile(strings.Join([]string{
		`(^|[\s"'=(:])/(home|root|Users|work|tmp)/\w`,
		`(?i:https?://[\w.-]*(mirror|artifactory|nexus|registry|goproxy)[\w.-]*)`,
		`\.\./shared|\b(DESIGN|STYLE|LESSONS)(\.md)?,? (section )?\d|\b(DESIGN|STYLE|LESSONS)\.md`,
		`\braft-695\.md|\bkafka-wire\.md|(?i:\btrap \d)`,
		`(?i:\b(claude|anthropic|chatgpt|llm)\b)`,
	}, "|"))
)

// files returns the project's text files by slash-separated path.
func files(t *testing.T, want func(name string) bool) map[string][]byte {
	t.Helper()
	found := make(map[string][]byte)
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", "bin", "dist"}, entry.Name()):
			return filepath.SkipDir
		case entry.IsDir() || !want(filepath.ToSlash(path)) || strings.HasSuffix(path, ".sum"):
			return nil
		}
		content, err := os.ReadFile(path)
		if err == nil && !bytes.ContainsRune(content, 0) {
			found[filepath.ToSlash(path)] = content
		}
		return err
	})
	if err != nil || len(found) == 0 {
		t.Fatalf("found %d files: %v", len(found), err)
	}
	return found
}

func goFile(path string) bool { return strings.HasSuffix(path, ".go") }

func TestFilesAreShort(t *testing.T) {
	for path, content := range files(t, goFile) {
		if lines := bytes.Count(content, []byte("\n")); lines > maxLines {
			t.Errorf("%s has %d lines; split it by subject, at most %d", path, lines, maxLines)
		}
	}
}

func TestPackagesHaveDoc(t *testing.T) {
	all := files(t, goFile)
	for path := range all {
		doc := filepath.ToSlash(filepath.Join(filepath.Dir(path), "doc.go"))
		if _, ok := all[doc]; !ok && !strings.HasSuffix(path, "_test.go") {
			t.Errorf("%s: its package has no doc.go", path)
		}
	}
}

// TestTestsWaitForConditions lets tests sleep only on the fake clock of a synctest bubble.
func TestTestsWaitForConditions(t *testing.T) {
	for path, content := range files(t, func(path string) bool { return strings.HasSuffix(path, "_test.go") }) {
		if bytes.Contains(content, []byte(`"testing/synctest"`)) {
			continue
		}
		eachLine(content, func(n int, line string) {
			if sleep.MatchString(line) && path != "tidy_test.go" {
				t.Errorf("%s:%d: wait for a condition with a deadline, not for time", path, n)
			}
		})
	}
}

func TestEveryTodoHasAnOwner(t *testing.T) {
	for path, content := range files(t, goFile) {
		eachLine(content, func(n int, line string) {
			if unowned.MatchString(line) && path != "tidy_test.go" {
				t.Errorf("%s:%d: only TODO(name) is allowed", path, n)
			}
		})
	}
}

func TestFilesSpeakOfTheProjectOnly(t *testing.T) {
	for path, content := range files(t, func(path string) bool { return path != "tidy_test.go" }) {
		eachLine(content, func(n int, line string) {
			if found := foreign.FindString(line); found != "" {
				t.Errorf("%s:%d: %q does not belong here", path, n, strings.TrimSpace(found))
			}
		})
	}
}

func TestMarkdownHasOneTitle(t *testing.T) {
	for path, content := range files(t, func(path string) bool { return strings.HasSuffix(path, ".md") }) {
		titles, code := 0, false
		eachLine(content, func(_ int, line string) {
			if strings.HasPrefix(line, "```") {
				code = !code
			}
			if !code && strings.HasPrefix(line, "# ") {
				titles++
			}
		})
		if titles != 1 {
			t.Errorf("%s has %d titles", path, titles)
		}
	}
}

// TestDocumentsNameTheVariablesThatExist compares what `ftproxy config` prints with what a user reads and copies.
func TestDocumentsNameTheVariablesThatExist(t *testing.T) {
	printed, err := exec.CommandContext(t.Context(), "go", "run", "./cmd/ftproxy", "config").Output()
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	for _, name := range variable.FindAllString(string(printed), -1) {
		known[name] = true
	}
	named := make(map[string]bool)
	for path, content := range files(t, func(path string) bool {
		return slices.Contains([]string{"README.md", "docker-compose.yml", "Dockerfile"}, path)
	}) {
		for _, name := range variable.FindAllString(string(content), -1) {
			named[name] = named[name] || path == "README.md"
			if !known[name] && !known[strings.TrimSuffix(name, "_FILE")] {
				t.Errorf("%s names %s, which the program does not know", path, name)
			}
		}
	}
	for name := range known {
		if !named[name] {
			t.Errorf("README.md does not name %s", name)
		}
	}
}

func eachLine(content []byte, visit func(n int, line string)) {
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		visit(n, lines.Text())
	}
}
