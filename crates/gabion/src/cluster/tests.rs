//! Settings and their limits, `cluster.json`, the lock, and the remains of creation and removal.

use super::*;
use crate::options::{Ack, Compaction};
use gabion_engine::Compression;
use gabion_sim::hostile::{Format, Parsed};
use std::cell::Cell;
use std::rc::Rc;

fn made() -> Settings {
    Settings::new(&FixedOptions::default(), 6379, Path::new("/d"), 100 * GIB).unwrap()
}

fn directory(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("gabion-cluster-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

#[test]
fn without_options_three_replicas_of_four_gibibytes_are_made() {
    let settings = made();
    assert_eq!((settings.replicas, settings.pool_len), (3, 4 * GIB));
    assert_eq!(settings.group().founding_view().writer(), ReplicaId(1));
    settings.group().validate().unwrap();
}

#[test]
fn pools_take_no_more_than_four_fifths_of_the_free_disk() {
    let settings = Settings::new(&FixedOptions::default(), 6379, Path::new("/d"), 3 * GIB).unwrap();
    assert!(settings.pool_len < POOL_LEN_DEFAULT);
    assert!(settings.reserved() <= 3 * GIB / 5 * 4);
}

#[test]
fn a_disk_that_is_too_full_is_refused_with_what_is_free_and_what_is_needed() {
    let error =
        Settings::new(&FixedOptions::default(), 6379, Path::new("/d"), GIB / 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.message().contains("/d has 512.0 MiB free"), "{error}");
    // Three of the least size would fit, but not into the space used when no size is given.
    let free = 1100 * MIB;
    let error = Settings::new(&FixedOptions::default(), 6379, Path::new("/d"), free).unwrap_err();
    let rule = "1.1 GiB free, of which 80 % (880.0 MiB) are used at most without --pool-size; ";
    assert!(error.message().contains(rule), "{error}");
    let least = FixedOptions { pool_size: Some(POOL_LEN_MIN), ..FixedOptions::default() };
    Settings::new(&least, 6379, Path::new("/d"), free).unwrap();
    let wanted = FixedOptions { pool_size: Some(8 * GIB), ..FixedOptions::default() };
    let error = Settings::new(&wanted, 6379, Path::new("/d"), 9 * GIB).unwrap_err();
    assert!(error.message().contains("--pool-size 8GiB need 24.3 GiB"), "{error}");
}

#[test]
fn a_size_out_of_its_limits_is_refused_by_the_name_of_its_option() {
    for (wanted, name) in [
        (
            FixedOptions { pool_size: Some(GIB / 8), ..FixedOptions::default() },
            "--pool-size 128MiB",
        ),
        (
            FixedOptions { memtable_size: Some(1), ..FixedOptions::default() },
            "--memtable-size is 1",
        ),
        (FixedOptions { memtable_size: Some(GIB), ..FixedOptions::default() }, "--memtable-size"),
    ] {
        let error = Settings::new(&wanted, 6379, Path::new("/d"), 100 * GIB).unwrap_err();
        assert!(error.message().contains(name), "{error}");
    }
}

/// docs/faults.md: P36
#[test]
fn what_is_fixed_is_refused_by_name_when_it_differs_and_taken_when_it_does_not() {
    let settings = made();
    let none = FixedOptions::default;
    for (wanted, name) in [
        (FixedOptions { replicas: Some(2), ..none() }, "--replicas 2"),
        (FixedOptions { pool_size: Some(GIB), ..none() }, "--pool-size 1GiB"),
        (FixedOptions { pool_size: Some(1), ..none() }, "--pool-size 1: /d was made with 4GiB"),
        (
            FixedOptions { pool_size: Some(GIB + KIB), ..none() },
            "--pool-size 1048577KiB: /d was made with 4GiB",
        ),
        (
            FixedOptions { compaction: Some(Compaction::EveryReplica), ..none() },
            "--compaction every-replica: /d was made with primary",
        ),
        (FixedOptions { ack: Some(Ack::Durable), ..none() }, "--ack durable"),
        (FixedOptions { memtable_size: Some(MIB), ..none() }, "--memtable-size 1MiB"),
        (FixedOptions { compression: Some(Compression::Lz4), ..none() }, "--compression lz4"),
        (
            FixedOptions { bottom_compression: Some(Compression::ZSTD), ..none() },
            "--bottom-compression zstd:3: /d was made with that of --compression",
        ),
    ] {
        let error = settings.check_fixed(&wanted, Path::new("/d")).unwrap_err();
        assert!(error.message().contains(name), "{error}");
    }
    let same = FixedOptions { replicas: Some(3), ack: Some(Ack::Replicated), ..none() };
    settings.check_fixed(&same, Path::new("/d")).unwrap();
    let in_whole_mib = FixedOptions { pool_size: Some(4 * GIB + KIB), ..none() };
    settings.check_fixed(&in_whole_mib, Path::new("/d")).unwrap();
}

#[test]
fn as_many_members_are_needed_as_was_said_when_the_data_was_made() {
    let new = |replicas, min_replicas, compaction| {
        let wanted = FixedOptions { replicas, min_replicas, compaction, ..FixedOptions::default() };
        Settings::new(&wanted, 6379, Path::new("/d"), 100 * GIB)
    };
    let needed = |replicas| new(Some(replicas), None, None).unwrap().members_min;
    assert_eq!([1, 2, 3, 16].map(needed), [1, 2, 2, 2]);
    assert_eq!(new(Some(3), Some(3), None).unwrap().members_min, 3);
    let error = new(Some(3), Some(4), None).unwrap_err();
    assert!(error.message().contains("--min-replicas 4: the group has 3"), "{error}");
    let everywhere = Some(Compaction::EveryReplica);
    assert_eq!(new(None, None, everywhere).unwrap().members_min, 3);
    let error = new(None, Some(2), everywhere).unwrap_err();
    assert!(error.message().contains("the members are fixed"), "{error}");
    let refused = FixedOptions { min_replicas: Some(1), ..FixedOptions::default() };
    let error = made().check_fixed(&refused, Path::new("/d")).unwrap_err();
    assert!(error.message().contains("--min-replicas 1: /d was made with 2"), "{error}");
}

#[test]
fn levels_grow_as_was_said_when_the_data_was_made_and_as_usual_where_nothing_was_said() {
    let usual = made();
    assert!(usual.to_json().get(GROWTH).is_none());
    assert_eq!(usual.group().tree.level_multiplier, growth_usual());
    for large_values in [0, 512] {
        let one = Settings { large_values, ..usual.clone() };
        // Data that was made before there was a default has no such field.
        assert_eq!(one.to_json().get(LARGE_VALUES).is_some(), large_values > 0);
        let read = Settings::from_json(&one.to_json()).unwrap();
        assert_eq!((read.group().tree.large_values, read), (large_values, one));
    }
    let steep = Settings { growth_factor: 8, ..usual };
    let mut value = steep.to_json();
    let read = Settings::from_json(&value).unwrap();
    assert_eq!((read.group().tree.level_multiplier, &read), (8, &steep));
    for strange in [json!(1), json!(101), json!("x")] {
        value[GROWTH] = strange;
        assert!(Settings::from_json(&value).unwrap_err().contains(GROWTH));
    }
}

#[test]
fn data_of_a_build_without_a_controller_gets_the_default_and_no_spares() {
    let mut value = made().to_json();
    value.as_object_mut().unwrap().remove(MEMBERS_MIN);
    assert_eq!(Settings::from_json(&value).unwrap().members_min, 2);
    for strange in [json!(0), json!(4), json!("x")] {
        value[MEMBERS_MIN] = strange;
        assert!(Settings::from_json(&value).unwrap_err().contains(MEMBERS_MIN));
    }
    value[MEMBERS_MIN] = json!(1);
    for strange in [json!(14), json!("x")] {
        value[SPARES] = strange;
        assert!(Settings::from_json(&value).unwrap_err().contains(SPARES));
    }
    value[SPARES] = json!(13);
    let settings = Settings::from_json(&value).unwrap();
    assert_eq!((settings.members().count(), settings.nodes().count()), (3, 16));
}

#[test]
fn spares_are_made_once_and_never_fewer() {
    let dir = directory("spares");
    let small = FixedOptions { pool_size: Some(POOL_LEN_MIN), ..FixedOptions::default() };
    let mut settings = Settings::new(&small, 6379, &dir, 100 * GIB).unwrap();
    for (wanted, part) in [(14, "13 are possible"), (16, "13 are possible")] {
        let error = make_spares(&dir, &mut settings, wanted, |_| {}).unwrap_err();
        assert!(error.message().contains(part), "{error}");
    }
    let mut made = Vec::new();
    make_spares(&dir, &mut settings, 1, |number| made.push(number)).unwrap();
    assert_eq!((made, is_missing(&dir, 4), is_missing(&dir, 5)), (vec![4], false, true));
    assert_eq!(load(&dir).unwrap(), Some(settings.clone()));
    make_spares(&dir, &mut settings, 1, |_| panic!("it is there")).unwrap();
    let error = make_spares(&dir, &mut settings, 0, |_| {}).unwrap_err();
    assert!(error.message().contains("1 were made"), "{error}");
    let aside = put_aside(&dir, 4, 77).unwrap();
    assert!(is_missing(&dir, 4) && aside.ends_with("replica-4.broken-77"));
    make_empty(&dir, &settings, 4).unwrap();
    // All of it is Gabion's.
    remove(&dir).unwrap();
    assert!(!dir.exists());
}

#[test]
fn settings_survive_their_file() {
    let dir = directory("settings");
    assert_eq!(load(&dir).unwrap(), None);
    let (upper, bottom) = (Compression::Lz4, Some(Compression::Zstd { level: 7 }));
    for codecs in [Codecs { upper, bottom: None }, Codecs { upper, bottom }] {
        let settings = Settings { codecs, port: 7000, ..made() };
        save(&dir, &settings).unwrap();
        assert_eq!(load(&dir).unwrap(), Some(settings));
    }
}

#[test]
fn data_of_another_version_is_refused_with_both_versions() {
    let mut value = made().to_json();
    value["format"] = json!(3);
    value["made_by"] = json!("9.9.9");
    let error = Settings::from_json(&value).unwrap_err();
    assert!(error.contains("format 3, made by gabion 9.9.9"), "{error}");
}

#[test]
fn a_file_with_a_missing_or_strange_value_is_refused_by_its_name() {
    for name in [
        "group",
        "replicas",
        MEMBERS_MIN,
        "port",
        "pool_size",
        "compaction",
        "ack",
        "compression",
        BOTTOM,
    ] {
        for strange in [json!(null), json!(0.5), json!("x"), json!(99_999_999_999_u64)] {
            let mut value = made().to_json();
            value[name] = strange.clone();
            if ["group", "pool_size"].contains(&name) && strange.is_u64() {
                continue;
            }
            let error = Settings::from_json(&value).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
    }
}

/// docs/faults.md: E14
#[test]
fn a_size_that_no_pool_and_no_memtable_has_is_refused_by_its_name() {
    for (name, max) in [("pool_size", POOL_LEN_MAX), ("memtable_size", MEMTABLE_LEN_MAX)] {
        let mut value = made().to_json();
        value[name] = json!(max);
        let settings = Settings::from_json(&value).unwrap();
        assert!(settings.reserved() > settings.pool_len);
        for more in [max + 1, u64::MAX] {
            value[name] = json!(more);
            let error = Settings::from_json(&value).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
    }
}

/// Files of groups of all kinds, one of them with a field that this build does not know.
fn files() -> Vec<Vec<u8>> {
    let one = Settings { group: GroupId(1_234_567_890), ..made() };
    let (upper, bottom) = (Compression::Lz4, Some(Compression::Zstd { level: 7 }));
    let other = Settings {
        replicas: 16,
        compaction: CompactionMode::EveryReplica,
        ack: AckLevel::Durable,
        codecs: Codecs { upper, bottom },
        growth_factor: 8,
        ..one.clone()
    };
    let note = format!("{{\n  \"note\": \"{}\",", "for whom it may concern. ".repeat(12));
    let noted = one.to_text().replacen('{', &note, 1);
    [one.to_text(), other.to_text(), noted].map(String::into_bytes).to_vec()
}

/// The values of an accepted file are used in sums.
fn use_settings(settings: &Settings) {
    assert!(settings.reserved() > settings.pool_len);
    assert_eq!(settings.group().founders.len(), settings.replicas as usize);
    for number in settings.members() {
        let doors = settings.doors(number);
        let highest = doors.resp.port().max(doors.peer.port()).max(doors.target.port());
        assert!(highest <= settings.port + PORTS_ABOVE);
    }
}

/// docs/faults.md: E14
#[test]
fn no_cluster_json_panics_or_reserves_much_and_one_that_is_taken_is_written_as_it_is_read() {
    // Inputs; and among them files of this version with an invalid value.
    let counts = Rc::new([Cell::new(0_u64), Cell::new(0_u64)]);
    let counted = counts.clone();
    let read = move |text: &[u8]| -> Parsed {
        let [inputs, refused] = &*counted;
        inputs.set(inputs.get() + 1);
        let read = Settings::from_text(text, Path::new("cluster.json"));
        if let Err(error) = &read
            && error.message().starts_with("cluster.json: `")
            && !error.message().starts_with("cluster.json: `format`")
        {
            refused.set(refused.get() + 1);
        }
        let settings = read?;
        use_settings(&settings);
        Ok(Some(settings.to_text().into_bytes()))
    };
    let format = Format {
        // Spaces, the version that made it, fields without a meaning.
        is_canonical: false,
        ..Format::new("cluster.json", files(), read)
    };
    format.run();
    let [inputs, refused] = &*counts;
    assert!(inputs.get() < 100 || refused.get() > 0, "of {} inputs none", inputs.get());
}

#[test]
fn a_directory_is_locked_once_and_names_its_holder() {
    let dir = directory("lock");
    let lock = Lock::take(&dir).unwrap();
    let error = Lock::take(&dir).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.message().contains(&format!("process {}", std::process::id())), "{error}");
    drop(lock);
    Lock::take(&dir).unwrap();
}

#[test]
fn what_an_interrupted_creation_left_is_removed_and_nothing_else() {
    let dir = directory("leftovers");
    std::fs::create_dir_all(replica_dir(&dir, 1)).unwrap();
    std::fs::write(dir.join("mine.txt"), "x").unwrap();
    let error = clear_leftovers(&dir).unwrap_err();
    assert!(error.message().contains("nothing was touched"), "{error}");
    mark_unfinished(&dir).unwrap();
    assert!(clear_leftovers(&dir).unwrap());
    assert!(!replica_dir(&dir, 1).exists());
    assert!(dir.join("mine.txt").exists());
    assert!(!clear_leftovers(&dir).unwrap());
}

#[test]
fn removal_takes_the_data_and_leaves_what_is_not_its_own() {
    let dir = directory("removal");
    std::fs::create_dir_all(replica_dir(&dir, 1)).unwrap();
    save(&dir, &made()).unwrap();
    std::fs::write(dir.join("mine.txt"), "x").unwrap();
    assert_eq!(remove(&dir).unwrap(), [dir.join("mine.txt")]);
    assert!(!replica_dir(&dir, 1).exists());
    assert_eq!(load(&dir).unwrap(), None);
    assert!(dir.join("mine.txt").exists());
}

#[test]
fn a_port_that_is_taken_is_named_with_the_option() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().port();
    // The replica's own doors may happen to be busy too; any of them names the option.
    let settings = Settings { port: taken.min(u16::MAX - PORTS_ABOVE), replicas: 1, ..made() };
    if settings.port == taken {
        let error = settings.check_ports().unwrap_err();
        assert!(
            error.message().contains(&format!("port {taken} (clients of replica 1)")),
            "{error}"
        );
        assert!(error.message().contains("--port"), "{error}");
    }
}

#[test]
fn no_two_doors_of_a_group_share_a_port() {
    let settings = Settings { replicas: 16, ..made() };
    let mut ports: Vec<u16> = settings
        .members()
        .flat_map(|n| {
            let doors = settings.doors(n);
            [doors.resp.port(), doors.peer.port(), doors.target.port()]
        })
        .collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 48);
    assert!(ports.iter().all(|port| *port <= settings.port + PORTS_ABOVE));
}

#[test]
fn data_that_cannot_be_read_is_no_reason_not_to_ask_a_port() {
    use crate::client::tests::{ANSWERING, Stand};
    let dir = directory("unreadable");
    std::fs::write(settings_path(&dir), "{").unwrap();
    let stand = Stand::new(ANSWERING);
    let data = DataOption { data: Some(dir.clone()) };
    let mut place =
        WhereOptions { data, port: Some(stand.address.port()), ..WhereOptions::default() };
    assert_eq!(addresses(&place).unwrap(), [(1, stand.address)]);
    place.port = None;
    assert_eq!(addresses(&place).unwrap_err().kind(), ErrorKind::Corruption);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Makes foreign things under a name. Returns the name of each kind.
const THINGS: [&str; 6] = ["text", "empty file", "directory", "link", "dangling link", "FIFO"];

fn put_there(thing: &str, path: &Path) {
    use rustix::fs::{CWD, FileType, mknodat};
    let made = match thing {
        "text" => std::fs::write(path, "somebody's words"),
        "empty file" => std::fs::write(path, ""),
        "directory" => std::fs::create_dir(path)
            .and_then(|()| std::fs::write(path.join("pool"), "somebody's words")),
        "link" => {
            std::fs::write(path.with_file_name("theirs"), "somebody's words").unwrap();
            std::os::unix::fs::symlink("theirs", path)
        }
        "dangling link" => std::os::unix::fs::symlink("nowhere", path),
        _ => mknodat(CWD, path, FileType::Fifo, rustix::fs::Mode::RUSR, 0).map_err(io::Error::from),
    };
    made.unwrap();
}

/// Everything below a directory but our lock: the kind and the bytes.
fn tree(dir: &Path) -> Vec<(PathBuf, String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let data = path.symlink_metadata().unwrap();
        let bytes = if data.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
        if data.is_dir() {
            found.extend(tree(&path));
        }
        if !owned::is_lock(&bytes) {
            let when = data.modified().unwrap();
            found.push((path, format!("{:?} {when:?}", data.file_type()), bytes));
        }
    }
    found.sort();
    found
}

/// The steps of `up` before it starts anything.
fn prepare(dir: &Path) -> Result<()> {
    let _lock = Lock::take(dir)?;
    clear_leftovers(dir)?;
    if load(dir)?.is_none() {
        let settings = Settings { replicas: 2, pool_len: 256 * MIB, ..made() };
        create(dir, &settings, |_| true)?;
    }
    Ok(())
}

#[test]
fn data_is_made_over_nothing_that_is_not_gabions() {
    let names = ["cluster.json", "cluster.json.unfinished", "lock", "unfinished", "replica-2"];
    for name in names {
        for thing in THINGS {
            let dir = directory("foreign");
            put_there(thing, &dir.join(name));
            let before = tree(&dir);
            let error = prepare(&dir).expect_err(&format!("{thing} called {name}"));
            let path = dir.join(name);
            assert!(error.to_string().contains(&path.display().to_string()), "{thing}: {error}");
            assert!(tree(&dir) == before, "{thing} called {name}: {:#?}", tree(&dir));
        }
    }
    let dir = directory("foreign");
    put_there("text", &dir.join("thesis"));
    let before = tree(&dir);
    prepare(&dir).unwrap();
    // Nothing else is removed with it either.
    for name in ["thesis", "log", "log.old", "pool.new"] {
        put_there("text", &replica_dir(&dir, 2).join(name));
    }
    let names = ["replica-2/log", "replica-2/log.old", "replica-2/pool.new", "replica-2/thesis"];
    let mut left: Vec<PathBuf> = names.map(|name| dir.join(name)).to_vec();
    left.push(dir.join("thesis"));
    assert_eq!(remove(&dir).unwrap(), left);
    assert!(tree(&dir).iter().any(|found| *found == before[0]));
    assert!(left.iter().all(|path| std::fs::read(path).unwrap() == b"somebody's words"));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn an_interrupted_creation_takes_nothing_of_others_with_it() {
    let dir = directory("foreign-leftovers");
    mark_unfinished(&dir).unwrap();
    std::fs::create_dir(replica_dir(&dir, 1)).unwrap();
    for name in ["pool", "pool.new", "ring", "ring.new", "log", "pool.unflushed"] {
        put_there("text", &replica_dir(&dir, 1).join(name));
    }
    let before = tree(&replica_dir(&dir, 1));
    assert!(clear_leftovers(&dir).unwrap());
    assert_eq!(tree(&replica_dir(&dir, 1)), before);
    assert!(clear_leftovers(&dir).unwrap_err().message().contains("nothing was touched"));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_log_is_written_to_no_file_of_others() {
    for thing in THINGS {
        let dir = directory("foreign-log");
        put_there(thing, &dir.join("log"));
        let before = tree(&dir);
        let error = owned::open_log(&dir.join("log"), 1).unwrap_err();
        assert!(error.to_string().contains("log: is in the way"), "{error}");
        assert_eq!(tree(&dir), before);
    }
    let dir = directory("foreign-log");
    // As an earlier version began a log.
    let old = "ring: was gone\nreplica 1 of group 7: clients 127.0.0.1:6379\n";
    std::fs::write(dir.join("log"), old).unwrap();
    owned::open_log(&dir.join("log"), 1).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}
