//! Reasons why an image cannot be opened, and its lock.

use crate::fake::{Log, libraries, open, open_with, options};
use inlock_engine::BackingStore;
use inlock_rbd_store::OpenError;
use std::time::Duration;

#[test]
fn every_failure_has_its_own_message() {
    let cases = [
        (":fake_connect=2", "no keyring with a key for client.admin"),
        (":id=me:fake_connect=2", "no keyring with a key for client.me"),
        (":id=me:fake_connect=13:keyring=/no/file", "no keyring with a key for client.me"),
        (
            ":id=me:fake_connect=13:keyring=/no/file,/dev/null",
            "the cluster refuses the key of client.me: Permission denied (os error 13)",
        ),
        (
            ":id=me:fake_connect=13:keyfile=x",
            "the cluster refuses the key of client.me: Permission denied (os error 13)",
        ),
        (
            ":fake_connect=1:keyfile=x",
            "the cluster refuses the key of client.admin: Operation not permitted (os error 1)",
        ),
        (":fake_connect=5:keyfile=x", "librados cannot read the key of client.admin: Input/output error (os error 5)"),
        (":fake_connect=5", "cannot connect to the cluster: Input/output error (os error 5)"),
        (":fake_connect=95", "the cluster refuses the key of client.admin: Operation not supported (os error 95)"),
        (":fake_connect=110", "no answer from the cluster within 60 s"),
        (":fake_connect=22", "cannot connect to the cluster: Invalid argument (os error 22)"),
        (":fake_pool=2", "the cluster has no pool 'pool'"),
        (":fake_pool=1", "client.admin may not use the pool"),
        (":fake_open=2", "the pool has no image 'image'"),
        (":fake_open=1", "client.admin may not open the image"),
        (":fake_open=110", "no answer from the cluster within 60 s"),
        (":fake_open=5", "cannot open the image: Input/output error (os error 5)"),
        (":fake_lock=30", "the image is locked by the client at an unknown address"),
        (":fake_lock=16", "the image is locked by the client at an unknown address"),
        (":fake_lock=1", "client.admin may not lock the image"),
        (":fake_owners=16", "the image has a lock that was set by hand"),
        (":fake_owners=5", "cannot lock the image: Input/output error (os error 5)"),
        (":fake_fsid=5", "cannot read the identity of the cluster: Input/output error (os error 5)"),
        (":fake_stat=5", "cannot read the image's object size: Input/output error (os error 5)"),
        (":fake_id=5", "cannot read the image's identity: Input/output error (os error 5)"),
        (":id=none", "cannot make a client of Ceph: Invalid argument (os error 22)"),
        (":fake_get_size=5", "cannot read the image's size: Input/output error (os error 5)"),
        (":unknown=1", "option unknown is refused by Ceph: No such file or directory (os error 2)"),
        (":conf=/no/file", "cannot read the Ceph configuration /no/file: No such file or directory (os error 2)"),
    ];
    for (instructions, message) in cases {
        assert_eq!(open(instructions).unwrap_err().to_string(), message, "{instructions}");
    }
    let open_name = |name: &str| open_with(name, &options(), false).unwrap_err().to_string();
    assert_eq!(open_name("rbd:pool/image:fake_connect=2"), "the Ceph configuration names no monitors");
    assert_eq!(open_name("rbd:pool/space/image:fake_namespace=1"), "the pool has no namespace 'space'");
    assert_eq!(open_name("rbd:pool/image@snap:fake_snap=2"), "the image has no snapshot 'snap'");
    println!("COUNT rbd_opening_failures {}", cases.len() + 3);
}

/// librados fails operations after a number of whole seconds, and never if it is zero.
#[test]
fn options_of_the_cluster_are_the_times_and_those_of_the_name() {
    let place = Log::new();
    let file = place.path("options");
    let mut options = options();
    (options.connect_timeout, options.store_timeout) = (Duration::from_secs(77), Duration::from_millis(100));
    let name = format!("rbd:pool/image:log_to_stderr=true:fake_options={}", file.display());
    drop(open_with(&name, &options, true).unwrap());
    let text = std::fs::read_to_string(&file).unwrap();
    // The last value of an option counts, which comes first.
    let value = |option: &str| {
        text.lines().find_map(|line| line.strip_prefix(option)?.strip_prefix('=')).map(ToOwned::to_owned)
    };
    for (option, expected) in [
        ("rbd_cache", "false"),
        ("log_to_stderr", "true"),
        ("err_to_stderr", "false"),
        ("client_mount_timeout", "77"),
        ("rados_mon_op_timeout", "77"),
        ("rados_osd_op_timeout", "1"),
    ] {
        assert_eq!(value(option).as_deref(), Some(expected), "{option}");
    }
}

/// Points in time are computed from the times.
#[test]
fn longest_times_are_possible() {
    let mut options = options();
    (options.connect_timeout, options.store_timeout) = (Duration::MAX, Duration::MAX);
    let store = open_with("rbd:pool/image", &options, false).unwrap();
    store.sync().unwrap();
}

/// A client that is limited to its namespace may not ask for it.
#[test]
fn image_of_a_namespace_is_looked_for_there_alone() {
    for instruction in ["", ":fake_namespace_exists=1"] {
        let log = Log::new();
        let name = format!("rbd:pool/space/image{}{instruction}", log.instruction());
        drop(open_with(&name, &options(), true).unwrap());
        assert_eq!(log.lines()[..4], ["connect", "full_try", "namespace space", "open read-only"]);
    }
}

/// Monitors and a key whose values in the configuration are longer than what is read of them.
#[test]
fn long_value_of_the_configuration_counts_as_set() {
    let place = Log::new();
    let conf = place.path("conf");
    let long = "10.0.0.1,".repeat(1000);
    let message = |option: &str, instruction: &str| {
        std::fs::write(&conf, format!("{option} {long}\n")).unwrap();
        let name = format!("rbd:pool/image:conf={}{instruction}", conf.display());
        open_with(&name, &options(), false).unwrap_err().to_string()
    };
    assert_eq!(message("mon_host", ":fake_connect=2"), "no keyring with a key for client.admin");
    assert_eq!(message("other", ":fake_connect=2"), "the Ceph configuration names no monitors");
    for option in ["key", "keyfile"] {
        let error = message(option, ":mon_host=x:fake_connect=13");
        assert!(error.starts_with("the cluster refuses the key"), "{option}: {error}");
    }
    let error = message("keyring", ":mon_host=x:fake_connect=13");
    assert_eq!(error, "no keyring with a key for client.admin");
}

#[test]
fn libraries_that_are_missing_old_or_incomplete_are_named() {
    let open = |dir: &str| {
        let mut options = options();
        options.library_dir = Some(libraries(dir));
        open_with("rbd:pool/image", &options, true).unwrap_err()
    };
    let missing = open("none").to_string();
    assert!(missing.starts_with("cannot load librados.so.2: "), "{missing}");
    assert!(missing.contains("No such file"), "{missing}");
    assert_eq!(open("old").to_string(), "cannot load librbd.so.1: its version 1.3 is older than 1.15");
    let lacking = open("lacking").to_string();
    assert!(lacking.contains("rados_set_pool_full_try"), "{lacking}");
}

#[test]
fn image_that_does_not_open_in_time_is_given_up_and_closed() {
    let log = Log::new();
    let mut options = options();
    options.connect_timeout = Duration::from_millis(100);
    let name = format!("rbd:pool/image:fake_sleep=1500{}", log.instruction());
    let error = open_with(&name, &options, false).unwrap_err();
    assert!(matches!(error, OpenError::TimedOut(_)), "{error}");
    while log.lines().last().is_none_or(|line| line != "shutdown") {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(log.lines(), ["connect", "full_try", "open", "close", "destroy", "shutdown"]);
}

#[test]
fn lock_of_a_living_client_is_taken_only_if_asked_for() {
    let owner = r"10.0.0.2\:0/5";
    let log = Log::new();
    let alive = format!(":fake_owner={owner}:fake_watcher={owner}{}", log.instruction());
    let error = open(&alive).unwrap_err();
    assert_eq!(error.to_string(), "the image is locked by the client at 10.0.0.2:0/5");
    assert!(!log.lines().iter().any(|line| line.starts_with("lock") || line.starts_with("break")), "{:?}", log.lines());

    // Also as the last of many clients.
    assert_eq!(open(&format!("{alive}:fake_others=1000")).unwrap_err().to_string(), error.to_string());
    assert!(open(&format!("{alive}:fake_others=100000")).unwrap_err().to_string().contains("cannot lock the image"));

    let mut stealing = options();
    stealing.steal_lock = true;
    let name = format!("rbd:pool/image{alive}");
    drop(open_with(&name, &stealing, false).unwrap());
    let lines = log.lines();
    let broken = lines.iter().position(|line| line == "break 0 10.0.0.2:0/5").expect("it is broken");
    assert_eq!(lines[broken + 1], "lock");
    assert!(open_with(&format!("{name}:fake_break=1"), &stealing, false).is_err());

    drop(open(":fake_no_owners=1").unwrap());

    // The watch of a dead client has ended; librbd frees its lock.
    let log = Log::new();
    let dead = format!(":fake_owner={owner}{}", log.instruction());
    assert!(open(&dead).unwrap().facts().is_locked);
    assert!(log.lines().contains(&"lock".to_owned()) && !log.lines().iter().any(|line| line.starts_with("break")));
}

/// The caller has its error, and may have asked another host to open the image.
#[test]
fn opening_that_was_given_up_takes_no_lock() {
    for owner in ["", r":fake_owner=10.0.0.2\:0/5:fake_watcher=10.0.0.2\:0/5"] {
        let log = Log::new();
        let mut options = options();
        (options.connect_timeout, options.steal_lock) = (Duration::ZERO, true);
        let name = format!("rbd:pool/image:mon_host=x:fake_sleep=3000{owner}{}", log.instruction());
        assert!(matches!(open_with(&name, &options, false), Err(OpenError::TimedOut(0))));
        while !log.lines().contains(&"shutdown".to_owned()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let lines = log.lines();
        assert!(lines.contains(&"open".to_owned()), "{lines:?}");
        assert!(!lines.iter().any(|line| line == "lock" || line.starts_with("break")), "{lines:?}");
    }
}

#[test]
fn reader_and_snapshot_take_no_lock_and_refuse_writes() {
    for (name, read_only) in [("rbd:pool/image", true), ("rbd:pool/image@snap", false)] {
        let log = Log::new();
        let owner = r":fake_owner=a:fake_watcher=a";
        let store = open_with(&format!("{name}:{}{owner}", &log.instruction()[1..]), &options(), read_only).unwrap();
        assert!(store.geometry().read_only && !store.facts().is_locked, "{name}");
        assert!(store.write_at(&[0; 512], 0).is_err() && store.discard(0, 512).is_err(), "{name}");
        drop(store);
        assert_eq!(log.lines(), ["connect", "full_try", "open read-only", "close", "destroy", "shutdown"], "{name}");
    }
}

#[test]
fn image_without_the_feature_is_used_without_a_lock() {
    let log = Log::new();
    let store = open(&format!(":fake_features=64{}", log.instruction())).unwrap();
    assert!(!store.facts().is_locked && store.facts().has_journal);
    assert!(!log.lines().contains(&"lock".to_owned()), "{:?}", log.lines());
}

#[test]
fn facts_are_those_of_the_image() {
    let store = open_with("rbd:pool/space/image@snap:fake_features=4:fake_stripes=3", &options(), true).unwrap();
    let facts = store.facts();
    assert_eq!((facts.size, facts.stripe_period, facts.has_journal), (8 << 20, 12 << 20, false));
    // No range of it is made of whole objects.
    assert_eq!((facts.object_size, store.profile().hole_len.unwrap().get()), (4 << 20, u64::MAX));
    let other = open(":fake_object=1048576:fake_overlap=512").unwrap();
    assert!(other.facts().is_clone && !facts.is_clone);
    assert_eq!((other.facts().object_size, other.profile().hole_len.unwrap().get()), (1 << 20, 1 << 20));
    assert_eq!(facts.identity, "fsid/7/space/imageid@snap");
}
