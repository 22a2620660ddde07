//! Tests of hidden names, and of finding leftover entries.

use super::*;
use crate::opening::tree::Tree;
use crate::staging::abandoned::remove_abandoned;
use std::process::Command;
use zmove_types::RelPath;

const HOUR: Duration = Duration::from_secs(60 * 60);

fn place() -> (tempfile::TempDir, Tree) {
    let home = tempfile::tempdir().unwrap();
    let tree = Tree::open(home.path()).unwrap();
    (home, tree)
}

/// Returns a hidden name of this age that was generated for a process that has ended.
pub(crate) fn of_a_dead_process(directory: BorrowedFd<'_>, age: Duration) -> Name {
    let mut child = Command::new("true").spawn().unwrap();
    let (pid, start) = (
        u64::from(child.id()),
        process_start(u64::from(child.id())).unwrap(),
    );
    child.wait().unwrap();
    let dead = ProcessIdentity {
        pid,
        start,
        ..ProcessIdentity::own().clone()
    };
    let (parent, moment) = (
        ParentIdentity::of(directory),
        since_epoch_ms(SystemTime::now() - age),
    );
    Name::from_bytes(format!("{HIDDEN_PREFIX}{parent}-{dead}-{moment:x}-0").as_bytes()).unwrap()
}

fn count(home: &tempfile::TempDir) -> usize {
    std::fs::read_dir(home.path()).unwrap().count()
}

#[test]
fn what_a_dead_process_left_goes_and_what_a_live_one_has_stays() {
    let (home, tree) = place();
    let names = LastingNames::new("t");
    let live = temporary_name(&ParentIdentity::of(tree.fd()));
    std::fs::write(home.path().join(live.as_os_str()), "x").unwrap();
    std::fs::write(
        home.path().join(names.name().as_os_str()),
        "a part of a large file",
    )
    .unwrap();
    let dead = home
        .path()
        .join(of_a_dead_process(tree.fd(), HOUR).as_os_str());
    std::fs::create_dir_all(dead.join("below")).unwrap();
    std::fs::write(dead.join("below/file"), "x").unwrap();
    std::fs::write(
        dead.join("below")
            .join(temporary_name(&ParentIdentity::of(tree.fd())).as_os_str()),
        "x",
    )
    .unwrap();
    remove_abandoned(&tree, &RelPath::root(), tree.fd()).unwrap();
    assert!(!dead.exists() && home.path().join(live.as_os_str()).exists());
    assert_eq!(count(&home), 2);
}

/// The entry is now in another directory, as after a copy by overlayfs or a merge of a staging directory.
#[test]
fn what_was_made_under_its_name_goes_wherever_it_is_by_now() {
    let ((_elsewhere, other), (home, tree)) = (place(), place());
    // The time of birth must be close to the time in the name, so the entry is created immediately.
    let path_now = || {
        let name = of_a_dead_process(other.fd(), Duration::ZERO);
        home.path().join(name.as_os_str())
    };
    std::fs::write(path_now(), "x").unwrap();
    std::fs::create_dir(path_now()).unwrap();
    std::os::unix::fs::symlink("nowhere", path_now()).unwrap();
    remove_abandoned(&tree, &RelPath::root(), tree.fd()).unwrap();
    assert_eq!(count(&home), 0);
}

#[test]
fn a_copy_in_another_directory_is_data() {
    let ((_elsewhere, other), (home, tree)) = (place(), place());
    let copy = of_a_dead_process(other.fd(), HOUR);
    std::fs::write(home.path().join(copy.as_os_str()), "x").unwrap();
    remove_abandoned(&tree, &RelPath::root(), tree.fd()).unwrap();
    assert_eq!(count(&home), 1);
}

#[test]
fn a_passing_name_is_known_in_its_directory_alone() {
    let ((_elsewhere, other), (_home, tree)) = (place(), place());
    let (name, ()) = make_hidden(tree.fd(), |_name| Ok(())).unwrap();
    assert!(is_temporary(tree.fd(), name.as_bytes()) && !is_temporary(other.fd(), name.as_bytes()));
    let dead = of_a_dead_process(tree.fd(), HOUR);
    assert!(is_temporary(tree.fd(), dead.as_bytes()));
    let lasting = LastingNames::new("t").name();
    for name in [
        lasting.as_bytes(),
        b".zmove-",
        b".zmove-mine",
        b"f",
        b"\xff",
    ] {
        assert!(!is_temporary(tree.fd(), name));
    }
}

#[test]
fn the_name_of_a_part_is_known_by_its_form_alone() {
    assert!(is_part(LastingNames::new("afb0ba00fd92").name().as_bytes()));
    let (_home, tree) = place();
    let names = [
        ".zmove-",
        ".zmove-mine",
        ".zmove-afb0ba00fd92",
        ".zmove-afb0ba00fd92-",
        ".zmove-afb0ba00fd92-x",
    ];
    let others = [
        "zmove-afb0ba00fd92-0",
        ".zmove-AFB0BA00FD92-0",
        ".zmove-afb0ba00fd-0",
        ".zmove-afb0ba00fd92-0-1",
    ];
    let passing = temporary_name(&ParentIdentity::of(tree.fd()));
    let names = names.iter().chain(&others).map(|name| name.as_bytes());
    for name in names.chain([passing.as_bytes()]) {
        assert!(!is_part(name), "{}", String::from_utf8_lossy(name));
    }
}

/// A scan skips only entries that cleanup may remove. On overlayfs, a directory of a lower layer gets another inode
/// when the first entry is created in it. At that time, the name has already been generated.
#[test]
fn what_was_born_when_its_name_tells_is_passing_wherever_it_is() {
    let ((_elsewhere, other), (home, tree)) = (place(), place());
    let old = of_a_dead_process(other.fd(), HOUR);
    let fresh = temporary_name(&ParentIdentity::of(other.fd()));
    for name in [&fresh, &old] {
        std::fs::write(home.path().join(name.as_os_str()), "x").unwrap();
    }
    assert!(is_temporary(tree.fd(), fresh.as_bytes()) && !is_temporary(tree.fd(), old.as_bytes()));
}

#[test]
fn what_other_machines_have_made_stays_for_a_week() {
    let foreign = made_now(ProcessIdentity {
        machine: ProcessIdentity::own().machine ^ 1,
        ..ProcessIdentity::own().clone()
    });
    assert!(!foreign.has_ended(|| Some(FOREIGN_AGE_MAX)));
    assert!(foreign.has_ended(|| Some(FOREIGN_AGE_MAX + Duration::from_secs(1))));
}

/// One process knows its machine and boot, and another process does not. Neither removes the entries of the other.
#[test]
fn what_comes_from_an_unknown_machine_or_boot_stays_for_a_week_on_both_sides() {
    let known = ProcessIdentity::own();
    let nameless = ProcessIdentity {
        machine: 0,
        ..known.clone()
    };
    let bootless = ProcessIdentity {
        boot: 0,
        ..known.clone()
    };
    let pairs = [
        (&nameless, known),
        (known, &nameless),
        (&bootless, known),
        (known, &bootless),
    ];
    for (maker, own) in pairs.into_iter().chain([(&bootless, &bootless)]) {
        let maker = made_now(ProcessIdentity {
            pid: u64::MAX,
            ..maker.clone()
        });
        assert!(
            !maker.has_ended_for(own, || Some(FOREIGN_AGE_MAX)),
            "{maker:?} {own:?}"
        );
        assert!(maker.has_ended_for(own, || Some(FOREIGN_AGE_MAX + Duration::from_secs(1))));
    }
}

#[test]
fn a_process_that_cannot_be_seen_runs_as_long_as_it_exists() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = u64::from(child.id());
    let process = ProcessIdentity {
        pid,
        start: process_start(pid).unwrap(),
        ..ProcessIdentity::own().clone()
    };
    assert!(process.is_running(None) && process.is_running(Some(process.start)));
    assert!(
        !process.is_running(Some(process.start + 1)),
        "another has its number"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!process.is_running(None));
    let nobodys = ProcessIdentity {
        pid: u64::MAX,
        ..process
    };
    assert!(!nobodys.is_running(None));
}

/// The parent does not reap its children, like the first process of many containers.
#[test]
fn a_zombie_counts_as_ended() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = u64::from(child.id());
    let process = ProcessIdentity {
        pid,
        start: process_start(pid).unwrap(),
        ..ProcessIdentity::own().clone()
    };
    let maker = made_now(process);
    assert!(!maker.has_ended(|| None));
    child.kill().unwrap();
    while process_start(pid) != Some(ENDED_START) {
        std::thread::yield_now();
    }
    assert!(maker.has_ended(|| None));
    child.wait().unwrap();
    let stat = |state: &str, threads: u8| {
        parse_process_start(
            format!("7 (a) b) {state} {}{threads} 0 88 0", "0 ".repeat(16)).as_bytes(),
        )
    };
    assert_eq!(
        [stat("S", 1), stat("Z", 2), stat("Z", 1), stat("X", 0)],
        [88, 88, ENDED_START, ENDED_START].map(Some)
    );
}

fn made_now(process: ProcessIdentity) -> EntryCreator {
    EntryCreator {
        process,
        created_ms: since_epoch_ms(SystemTime::now()),
    }
}

#[test]
fn what_was_made_before_the_last_boot_is_left_over() {
    let before = ProcessIdentity {
        boot: ProcessIdentity::own().boot ^ 1,
        ..ProcessIdentity::own().clone()
    };
    let before = EntryCreator {
        process: before,
        created_ms: booted_ms() - 1000,
    };
    assert!(
        before.has_ended(|| None) && !made_now(ProcessIdentity::own().clone()).has_ended(|| None)
    );
}

/// Machines cloned from one image share a machine ID but not a boot ID, and may share storage.
#[test]
fn what_a_clone_of_this_machine_is_at_since_this_boot_stays() {
    let (home, tree) = place();
    let clone = ProcessIdentity {
        boot: ProcessIdentity::own().boot ^ 1,
        ..ProcessIdentity::own().clone()
    };
    let (parent, moment) = (
        ParentIdentity::of(tree.fd()),
        since_epoch_ms(SystemTime::now()),
    );
    let name = format!("{HIDDEN_PREFIX}{parent}-{clone}-{moment:x}-0");
    std::fs::create_dir(home.path().join(&name)).unwrap();
    std::fs::write(home.path().join(&name).join("file"), "x").unwrap();
    remove_abandoned(&tree, &RelPath::root(), tree.fd()).unwrap();
    assert!(
        home.path().join(&name).join("file").exists(),
        "it was made after this machine has booted"
    );
}

/// If a clone booted before this machine, only the host name distinguishes its entries.
#[test]
fn machines_of_one_image_differ_by_their_names_and_containers_by_their_namespaces() {
    let one = machine_hash(7, 0, b"dtn1");
    assert_eq!(one, machine_hash(7, 0, b"dtn1"));
    let others = [
        (0, &b"dtn2"[..]),
        (0xF000_0001, b"dtn1"),
        (0xF000_0001 << 32, b"dtn1"),
    ];
    assert!(
        others
            .into_iter()
            .all(|(namespaces, name)| machine_hash(7, namespaces, name) != one)
    );
}

#[test]
fn names_are_read_back_and_others_are_none() {
    let own = ProcessIdentity::own();
    let [machine, boot, pid, start, created_ms, number] =
        parse_hex_numbers(&format!("{own}-7b-2a")).unwrap();
    assert_eq!(
        &ProcessIdentity::of_numbers([machine, boot, pid, start]),
        own
    );
    assert_eq!([created_ms, number], [0x7b, 0x2a]);
    for other in ["", "1-2-3-4-5", "1-2-3-4-5-6-7", "1-2-3-4-5-x", "t-0"] {
        assert_eq!(parse_hex_numbers::<6>(other), None, "{other}");
    }
}

#[test]
fn a_process_is_known_to_have_ended_only_on_this_machine_and_boot() {
    let own = ProcessIdentity::own();
    let dead = ProcessIdentity {
        pid: u64::MAX,
        ..own.clone()
    };
    let restarted = ProcessIdentity {
        start: own.start + 1,
        ..own.clone()
    };
    for ended in [&dead, &restarted] {
        assert!(has_process_ended(&ended.to_string()), "{ended:?}");
    }
    let elsewhere = ProcessIdentity {
        machine: own.machine ^ 1,
        ..dead.clone()
    };
    let before = ProcessIdentity {
        boot: own.boot ^ 1,
        ..dead
    };
    assert!(!has_process_ended(own_process()));
    for unknown in [&elsewhere.to_string(), &before.to_string(), "", "1-2-3-x"] {
        assert!(!has_process_ended(unknown), "{unknown}");
    }
}

#[test]
fn names_differ() {
    let (parent, names) = (ParentIdentity::default(), LastingNames::new("t"));
    assert_ne!(temporary_name(&parent), temporary_name(&parent));
    assert_ne!(names.name(), names.name());
    assert!(is_hidden(temporary_name(&parent).as_bytes()) && is_hidden(names.name().as_bytes()));
}

#[test]
fn a_name_that_is_taken_is_not_asked_for_again() {
    let (home, tree) = place();
    let taken = std::cell::Cell::new(2);
    let make = |name: &Name| match taken.replace(taken.get() - 1) {
        0 => rustix::fs::mkdirat(tree.fd(), name.as_os_str(), rustix::fs::Mode::RWXU),
        _ => Err(Errno::EXIST),
    };
    let (name, ()) = make_hidden(tree.fd(), make).unwrap();
    assert!(home.path().join(name.as_os_str()).is_dir());
    let refused = make_hidden(tree.fd(), |_name| Err::<(), _>(Errno::NOSPC));
    assert_eq!(refused.unwrap_err(), Errno::NOSPC);
}

#[test]
fn nothing_is_made_in_a_directory_that_only_takes_new_names() {
    let (home, tree) = place();
    if rustix::fs::ioctl_setflags(tree.fd(), rustix::fs::IFlags::APPEND).is_err() {
        return eprintln!(
            "skipped: the directory for temporary files cannot be made append-only here"
        );
    }
    let make =
        |name: &Name| rustix::fs::mkdirat(tree.fd(), name.as_os_str(), rustix::fs::Mode::RWXU);
    let made = make_hidden(tree.fd(), make);
    rustix::fs::ioctl_setflags(tree.fd(), rustix::fs::IFlags::empty()).unwrap();
    assert_eq!((made.unwrap_err(), count(&home)), (Errno::PERM, 0));
}
