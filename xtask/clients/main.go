// The work of a program with go-redis: `go-redis PORT`, and with its cluster client: `go-redis
// cluster PORT`; ends with 0 or an error.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	name     = "clients:go-redis"
	patience = 60 * time.Second
)

var (
	ctx     = context.Background()
	release = redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`)
)

func fail(what string, words ...any) {
	fmt.Fprintln(os.Stderr, append([]any{"go-redis: " + what + ":"}, words...)...)
	os.Exit(1)
}

func must[T any](what string) func(T, error) T {
	return func(found T, err error) T {
		if err != nil {
			fail(what, err)
		}
		return found
	}
}

func check(what string, found, expected any) {
	if !reflect.DeepEqual(found, expected) {
		fail(what, found, "expected", expected)
	}
}

func pipeline(client *redis.Client) {
	replies := must[[]redis.Cmder]("pipeline")(client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := range 1000 {
			pipe.Set(ctx, fmt.Sprint(name, ":p", i), i, 0)
			pipe.Get(ctx, fmt.Sprint(name, ":p", i))
		}
		return nil
	}))
	for i := range 1000 {
		check("pipeline", replies[2*i+1].(*redis.StringCmd).Val(), strconv.Itoa(i))
	}
}

func transact(client, other *redis.Client) {
	key := name + ":t"
	replies := must[[]redis.Cmder]("MULTI")(client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, key, 1, 0)
		pipe.Incr(ctx, key)
		return nil
	}))
	check("MULTI", replies[1].(*redis.IntCmd).Val(), int64(2))
	increment := func(meanwhile func()) error {
		return client.Watch(ctx, func(tx *redis.Tx) error {
			found, err := tx.Get(ctx, key).Int()
			if err != nil {
				return err
			}
			meanwhile()
			_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
				pipe.Set(ctx, key, found+1, 0)
				return nil
			})
			return err
		}, key)
	}
	if err := increment(func() {}); err != nil {
		fail("WATCH", err)
	}
	if err := increment(func() { other.Set(ctx, key, 10, 0) }); !errors.Is(err, redis.TxFailedErr) {
		fail("EXEC after a watched key changed", err)
	}
	check("what another set", must[string]("GET")(client.Get(ctx, key).Result()), "10")
}

func scan(client *redis.Client) {
	found := map[string]bool{}
	keys := client.Scan(ctx, 0, name+":p*", 10).Iterator()
	for keys.Next(ctx) {
		found[keys.Val()] = true
	}
	if err := keys.Err(); err != nil {
		fail("SCAN", err)
	}
	check("SCAN", len(found), 1000)
}

func lock(client, other *redis.Client) {
	key := name + ":lock"
	take := func(client *redis.Client, token string) bool {
		reply, err := client.SetArgs(ctx, key, token, redis.SetArgs{Mode: "NX", TTL: 30 * time.Second}).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			fail("SET NX", err)
		}
		return reply == "OK"
	}
	check("SET NX", take(client, "mine"), true)
	check("SET NX of a held lock", take(other, "theirs"), false)
	check("release by another", must[int]("EVAL")(release.Run(ctx, other, []string{key}, "theirs").Int()), 0)
	check("release", must[int]("EVAL")(release.Run(ctx, client, []string{key}, "mine").Int()), 1)
}

func reconnect(client *redis.Client) {
	key := name + ":n"
	acknowledged := int64(0)
	for ; acknowledged < 100; acknowledged++ {
		must[int64]("INCR")(client.Incr(ctx, key).Result())
	}
	info := must[string]("INFO")(client.Info(ctx, "server").Result())
	pid := must[int]("process_id")(strconv.Atoi(regexp.MustCompile(`process_id:(\d+)`).FindStringSubmatch(info)[1]))
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		fail("kill", err)
	}
	until := time.Now().Add(patience)
	for acknowledged < 110 {
		if err := client.Incr(ctx, key).Err(); err == nil {
			acknowledged++
		} else if time.Now().After(until) {
			fail("no write since the node was killed", err)
		} else {
			time.Sleep(50 * time.Millisecond)
		}
	}
	found := must[int64]("GET")(client.Get(ctx, key).Int64())
	if found < acknowledged {
		fail("increments", found, "after as many were acknowledged:", acknowledged)
	}
	check("what was set before", must[string]("GET")(client.Get(ctx, name+":p999").Result()), "999")
}

func main() {
	port := os.Args[len(os.Args)-1]
	if os.Args[1] == "cluster" {
		cluster(port)
		return
	}
	connect := func() *redis.Client { return redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port}) }
	client, other := connect(), connect()
	pipeline(client)
	transact(client, other)
	scan(client)
	lock(client, other)
	reconnect(client)
	fmt.Printf("go-redis %s: pipeline, transactions, scan, lock, reconnect on port %s\n", redis.Version(), port)
}
