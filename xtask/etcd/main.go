// etcd as its module has it: `go install` refuses modules with replacements, so this one asks for
// it.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
