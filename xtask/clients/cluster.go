// What a program does with go-redis's cluster client: `go-redis cluster PORT`. PORT is one of a
// group's doors.
package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"
)

const (
	clusterName = "clients:go-redis-cluster"
	clusterKeys = 4000
)

var add = redis.NewScript(`return redis.call("INCRBY", KEYS[1], ARGV[1])`)

// Short enough to be answered within the client's timeout, after which it sends all of it again.
func clusterPipeline(client *redis.ClusterClient) {
	for first := 0; first < clusterKeys; first += 500 {
		pipelined := must[[]redis.Cmder]("pipeline")
		replies := pipelined(client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i := first; i < first+500; i++ {
				pipe.Set(ctx, fmt.Sprint(clusterName, ":", i), i, 0)
				pipe.Get(ctx, fmt.Sprint(clusterName, ":", i))
			}
			return nil
		}))
		for i := range 500 {
			check("pipeline", replies[2*i+1].(*redis.StringCmd).Val(), strconv.Itoa(first+i))
		}
	}
}

func oneSlot(client *redis.ClusterClient) {
	for i := range 50 {
		a, b := fmt.Sprintf("%s:{%d}:a", clusterName, i), fmt.Sprintf("%s:{%d}:b", clusterName, i)
		must[string]("MSET")(client.MSet(ctx, a, 1, b, 2).Result())
		check("MGET", must[[]any]("MGET")(client.MGet(ctx, a, b).Result()), []any{"1", "2"})
		replies := must[[]redis.Cmder]("MULTI")(client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Incr(ctx, a)
			pipe.Incr(ctx, b)
			return nil
		}))
		check("MULTI", replies[1].(*redis.IntCmd).Val(), int64(3))
		check("EVAL", must[int]("EVAL")(add.Run(ctx, client, []string{a}, 5).Int()), 7)
	}
}

func allKeys(client *redis.ClusterClient) {
	found, lock := map[string]bool{}, sync.Mutex{}
	err := client.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
		keys := master.Scan(ctx, 0, clusterName+":*", 100).Iterator()
		for keys.Next(ctx) {
			lock.Lock()
			found[keys.Val()] = true
			lock.Unlock()
		}
		return keys.Err()
	})
	if err != nil {
		fail("SCAN", err)
	}
	check("SCAN", len(found), clusterKeys+100)
}

func cluster(port string) {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:" + port}})
	clusterPipeline(client)
	oneSlot(client)
	allKeys(client)
	fmt.Printf("go-redis %s, cluster: %d keys, pipeline, transactions, scan\n",
		redis.Version(), clusterKeys)
}
