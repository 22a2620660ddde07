//! Opening a target.

use super::*;
use crate::session::finish::finish;
use crate::store::placer::tests::transfer;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use zmove_disk::boot_clock;
use zmove_types::Metadata;

fn open(target: &str, shape: TargetShape) -> Open {
    Open {
        shape,
        ..Open::new(target.as_bytes().to_vec(), [0; 16])
    }
}

fn name(text: &str) -> Name {
    Name::from_bytes(text.as_bytes()).unwrap()
}

fn directory() -> TargetShape {
    TargetShape::Directory { tops: vec![] }
}

fn code(result: Result<Target, Refusal>) -> RefusalCode {
    result.unwrap_err().code
}

#[test]
fn targets_stay_beneath_their_roots() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("root");
    std::fs::create_dir(&root).unwrap();
    std::os::unix::fs::symlink("/tmp", root.join("link")).unwrap();
    let access = WriteAccess::Beneath(vec![root.clone()].into());
    let resolve =
        |target: &str| Target::resolve(&open(target, directory()), &access, &Lease::constant());
    assert!(resolve("a/b").is_ok() && root.join("a/b").is_dir());
    assert!(resolve(&format!("{}/c", root.display())).is_ok() && root.join("c").is_dir());
    assert_eq!(code(resolve("/etc")), RefusalCode::Denied);
    assert_eq!(
        code(resolve(&format!("{}x", root.display()))),
        RefusalCode::Denied
    );
    assert_eq!(code(resolve("../x")), RefusalCode::Target);
    assert_eq!(
        code(resolve(&format!("{}/../x", root.display()))),
        RefusalCode::Target
    );
    assert_eq!(code(resolve("link/x")), RefusalCode::Target);
    assert_eq!(
        code(Target::resolve(
            &open("a", directory()),
            &WriteAccess::ReadOnly,
            &Lease::constant()
        )),
        RefusalCode::Denied
    );
    assert_eq!(
        code(Target::resolve(
            &open("a", directory()),
            &WriteAccess::Beneath(vec![].into()),
            &Lease::constant()
        )),
        RefusalCode::Denied
    );
}

/// The parent directory need not be readable, so it is not the cause of the error.
#[test]
fn a_target_that_may_not_be_listed_is_named_itself() {
    let home = tempfile::tempdir().unwrap();
    let target = home.path().join("above/target");
    std::fs::create_dir_all(&target).unwrap();
    for closed in [&target, &home.path().join("above")] {
        std::fs::set_permissions(closed, PermissionsExt::from_mode(0o311)).unwrap();
    }
    let open = open(target.to_str().unwrap(), directory());
    let work = || {
        let mut own = capabilities(None).unwrap();
        own.effective
            .remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
        set_capabilities(None, own).unwrap();
        let access = WriteAccess::Anywhere;
        Target::resolve(&open, &access, &Lease::constant()).map(drop)
    };
    let refused = std::thread::scope(|scope| scope.spawn(work).join().unwrap());
    let text = refused.unwrap_err().text;
    let expected = format!("open directory '{}': Permission denied", target.display());
    assert!(text.starts_with(&expected), "{text}");
    std::fs::set_permissions(home.path().join("above"), PermissionsExt::from_mode(0o711)).unwrap();
}

/// The owner of the directory above a root could replace the root with a link to any directory.
#[test]
fn a_root_that_another_user_has_made_a_link_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("root");
    std::fs::create_dir(home.path().join("precious")).unwrap();
    std::os::unix::fs::symlink("precious", &root).unwrap();
    if std::os::unix::fs::lchown(&root, Some(65_534), None).is_err() {
        return eprintln!("skipped: only root can give a link away");
    }
    let access = WriteAccess::Beneath(vec![root].into());
    let open = open("x", directory());
    let looked = InspectedTarget::inspect(&open, &access)
        .map(drop)
        .unwrap_err();
    let resolved = Target::resolve(&open, &access, &Lease::constant()).unwrap_err();
    assert!(
        resolved.text.contains("belongs to user 65534") && looked == resolved,
        "{}",
        resolved.text
    );
    assert_eq!(
        std::fs::read_dir(home.path().join("precious"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn a_single_entry_takes_the_name_or_goes_into_the_directory() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("there")).unwrap();
    let single = || TargetShape::Single { name: name("f") };
    let resolve = |target: &str| {
        let target = home
            .path()
            .join(target)
            .into_os_string()
            .into_string()
            .unwrap();
        Target::resolve(
            &open(&target, single()),
            &WriteAccess::Anywhere,
            &Lease::constant(),
        )
        .unwrap()
    };
    assert_eq!(resolve("new").rename, Some((name("f"), name("new"))));
    assert_eq!(resolve("there").rename, None);
    assert_eq!(resolve("made/").rename, None);
    assert!(home.path().join("made").is_dir());
}

#[test]
fn only_what_will_be_written_counts_as_there() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("other"), "x").unwrap();
    let state = |tops: Vec<Name>| {
        let open = open(
            home.path().to_str().unwrap(),
            TargetShape::Directory { tops },
        );
        Target::resolve(&open, &WriteAccess::Anywhere, &Lease::constant())
            .unwrap()
            .state
    };
    assert_eq!(state(vec![name("mine")]), TargetState::Empty);
    assert_eq!(state(vec![name("other")]), TargetState::Populated);
    assert_eq!(state(vec![]), TargetState::Populated);
}

#[test]
fn no_directory_above_a_target_is_made_once_the_sender_has_gone() {
    let home = tempfile::tempdir().unwrap();
    let target = home.path().join("above/new");
    let open = open(target.to_str().unwrap(), directory());
    let lease = Lease::timed(boot_clock(), |_ping| {}, None);
    lease.end();
    Target::resolve(&open, &WriteAccess::Anywhere, &lease).unwrap_err();
    assert!(!home.path().join("above").exists());
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

#[test]
fn a_new_directory_is_closed_where_its_mode_is_to_come() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("usual")).unwrap();
    let usual = mode(&home.path().join("usual"));
    assert_ne!(
        usual, 0o700,
        "with the umask of this process nothing can be told apart"
    );
    let resolve = |target: &str, shape| {
        let target = home
            .path()
            .join(target)
            .into_os_string()
            .into_string()
            .unwrap();
        Target::resolve(
            &open(&target, shape),
            &WriteAccess::Anywhere,
            &Lease::constant(),
        )
        .unwrap()
        .is_closed
    };
    assert!(resolve("above/new", directory()));
    assert_eq!(
        [
            mode(&home.path().join("above/new")),
            mode(&home.path().join("above"))
        ],
        [0o700, usual]
    );
    assert!(
        !resolve("above/new", directory()),
        "it is not of this transfer"
    );
    // If named entries are stored directly in the target, the source sends no mode for the target.
    assert!(!resolve(
        "tops",
        TargetShape::Directory {
            tops: vec![name("a")]
        }
    ));
    assert!(!resolve("single/", TargetShape::Single { name: name("f") }));
    assert_eq!(
        [
            mode(&home.path().join("tops")),
            mode(&home.path().join("single"))
        ],
        [usual; 2]
    );
}

#[test]
fn a_closed_directory_for_which_no_mode_has_come_gets_the_usual_one() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    for name in ["usual", "there"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    std::fs::set_permissions(at("there"), PermissionsExt::from_mode(0o700)).unwrap();
    for name in ["new", "with mode", "there"] {
        let transfer = transfer(&at(name));
        if name == "with mode" {
            let metadata = Metadata {
                mode: 0o710,
                ..Metadata::default()
            };
            transfer.remember_directory(&Arc::new(RelPath::root()), None, metadata);
        }
        let (_, outcomes) = finish(&transfer).unwrap();
        assert!(outcomes.is_empty(), "{outcomes:?}");
        assert_eq!(std::fs::read_dir(at(name)).unwrap().count(), 0);
    }
    let modes = ["new", "with mode", "there"].map(|name| mode(&at(name)));
    assert_eq!(modes, [mode(&at("usual")), 0o710, 0o700]);
}

#[test]
fn a_file_is_no_target_for_a_directory() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("f");
    std::fs::write(&file, "keep").unwrap();
    let refusal = Target::resolve(
        &open(file.to_str().unwrap(), directory()),
        &WriteAccess::Anywhere,
        &Lease::constant(),
    )
    .unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Target);
    assert!(
        refusal.text.contains("/f' is a file and not a directory ("),
        "{}",
        refusal.text
    );
    assert_eq!(std::fs::read(&file).unwrap(), b"keep");
}
