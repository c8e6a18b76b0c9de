// Command release makes a release of all modules of the repository, locally.
//
//	release make VERSION    tag all modules in this clone
//	release rehearse        do that in a throwaway clone, and use the result
//
// On main the modules below the root module have a replace directive that points
// to the directory above, so that one commit can change both. What is released
// must not have it: "go install module/cmd@version" refuses such modules. So the
// release is a commit of its own, which only the tags point to: there the replace
// directives are gone and the modules require each other at VERSION.
//
// Nothing is pushed: the command prints how to do so.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
)

const usage = `Usage: release make VERSION    tag all modules; VERSION is like v0.3.0
       release rehearse        release a clone, and use what was released
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "release: error: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	root, err := git(ctx, ".", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	switch {
	case len(args) == 2 && args[0] == "make":
		tags, err := release(ctx, root, args[1], out)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "\nNothing is pushed yet. To publish it:\n  git push origin%s\n", joined(" refs/tags/", tags))
		fmt.Fprintf(out, "To take it back before that:\n  git tag -d%s\n", joined(" ", tags))
		return nil
	case len(args) == 1 && args[0] == "rehearse":
		return rehearse(ctx, root, out)
	}
	return errors.New("no such command\n" + usage)
}

// joined writes each of the words after a prefix.
func joined(prefix string, words []string) (text string) {
	for _, w := range words {
		text += prefix + w
	}
	return text
}
