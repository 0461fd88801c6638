// Checks histories of the simulator with Porcupine: one register per key, each history a file of a
// line for each operation,
//
//	key action value called returned
//
// as gabion-sim's history.rs writes them. An action is write, read, increment, add or expire; a
// value that is not there is "-", and so is the return of an operation whose outcome is unknown.
// Prints how many operations fit some order, or the first file that has none.
package main

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// A history that takes longer is told as one that could not be checked.
const patience = 60 * time.Second

// No value.
const absent = int64(-1)

type input struct {
	key, action string
	value       int64
	isKnown     bool
}

// The register after an operation, and whether the operation can have seen its result there. One
// whose outcome is unknown may have had no effect.
func step(state, given, _ interface{}) (bool, interface{}) {
	value, in := state.(int64), given.(input)
	after, fits := effect(value, in)
	if !fits && !in.isKnown {
		return true, value
	}
	return fits, after
}

func effect(value int64, in input) (int64, bool) {
	counted := max(value, 0)
	switch in.action {
	case "write":
		return in.value, true
	case "read":
		return value, in.value == value
	case "add":
		return counted + in.value, true
	case "increment":
		return in.value, in.value == counted+1
	case "expire":
		return absent, in.value == value
	}
	panic("unknown action " + in.action)
}

func byKey(history []porcupine.Operation) [][]porcupine.Operation {
	parts := map[string][]porcupine.Operation{}
	for _, operation := range history {
		key := operation.Input.(input).key
		parts[key] = append(parts[key], operation)
	}
	var all [][]porcupine.Operation
	for _, part := range parts {
		all = append(all, part)
	}
	return all
}

func read(path string) ([]porcupine.Operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var history []porcupine.Operation
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		operation, err := parse(strings.Fields(lines.Text()))
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, len(history)+1, err)
		}
		history = append(history, operation)
	}
	return history, lines.Err()
}

func parse(words []string) (porcupine.Operation, error) {
	var none porcupine.Operation
	if len(words) != 5 {
		return none, fmt.Errorf("%d words, not 5", len(words))
	}
	in := input{key: words[0], action: words[1], value: absent, isKnown: words[4] != "-"}
	switch in.action {
	case "write", "read", "increment", "add", "expire":
	default:
		return none, fmt.Errorf("action %s", in.action)
	}
	called, returned, err := int64(0), int64(math.MaxInt64), error(nil)
	if words[2] != "-" {
		in.value, err = strconv.ParseInt(words[2], 10, 64)
	}
	if err == nil {
		called, err = strconv.ParseInt(words[3], 10, 64)
	}
	if err == nil && in.isKnown {
		returned, err = strconv.ParseInt(words[4], 10, 64)
	}
	return porcupine.Operation{Input: in, Call: called, Return: returned}, err
}

func check(directory string) error {
	paths, err := filepath.Glob(filepath.Join(directory, "*.history"))
	if err != nil || len(paths) == 0 {
		return fmt.Errorf("%s: no histories (%v)", directory, err)
	}
	model := porcupine.Model{
		Partition: byKey,
		Init:      func() interface{} { return absent },
		Step:      step,
	}
	operations := 0
	for _, path := range paths {
		history, err := read(path)
		if err != nil {
			return err
		}
		switch porcupine.CheckOperationsTimeout(model, history, patience) {
		case porcupine.Illegal:
			return fmt.Errorf("%s: no order of its operations is linearizable", path)
		case porcupine.Unknown:
			return fmt.Errorf("%s: not checked within %v", path, patience)
		}
		operations += len(history)
	}
	if operations == 0 {
		return fmt.Errorf("%s: no operation in %d histories", directory, len(paths))
	}
	fmt.Printf("Porcupine: %d histories with %d operations are linearizable\n", len(paths), operations)
	return nil
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: porcupine DIRECTORY")
		os.Exit(2)
	}
	if err := check(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
