package main

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

// style is how text is drawn. Without colours every paint is plain.
type style struct {
	colours bool
	// columns is the width of the terminal; 0 means that there is none.
	columns int
}

type paint string

// The 16 colours that every terminal has, in the user's own shades.
const (
	plain  paint = ""
	bold   paint = "1"
	faint  paint = "2"
	red    paint = "1;31"
	green  paint = "32"
	yellow paint = "33"
	cyan   paint = "36"
)

// styleFor looks at what the output is. See https://no-color.org for NO_COLOR.
func styleFor(w io.Writer) style {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return style{}
	}
	s := style{columns: columns(f.Fd())}
	s.colours = s.columns > 0 && os.Getenv("NO_COLOR") == ""
	return s
}

// paint colours a text. Pad before painting: escape codes have no width.
func (s style) paint(p paint, text string) string {
	if !s.colours || p == plain || text == "" {
		return text
	}
	return "\x1b[" + string(p) + "m" + text + "\x1b[0m"
}

// pad fills text up to a width in columns.
func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}

// wrap breaks text into lines of at most width columns, between words.
func wrap(text string, width int) []string {
	var lines []string
	for paragraph := range strings.SplitSeq(text, "\n") {
		line := ""
		for word := range strings.FieldsSeq(paragraph) {
			switch {
			case line == "":
				line = word
			case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
				lines = append(lines, line)
				line = word
			default:
				line += " " + word
			}
		}
		lines = append(lines, line)
	}
	return lines
}
