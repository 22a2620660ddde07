//! Tests of setting the metadata of an entry.

use super::*;
use crate::metadata::entry::tests::as_an_ordinary_user;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

const WANTED: WantedMetadata<'_> = WantedMetadata {
    mode: 0o640,
    mtime: Some(Timestamp {
        seconds: 5,
        nanos: 6,
    }),
    atime: None,
    owner: None,
    group: None,
    xattrs: &[],
    kinds: MetadataKinds::ANY_XATTR,
    may_set_owner: true,
    set_ids_need_owner: true,
};

fn file() -> File {
    tempfile::tempfile().unwrap()
}

fn mode(file: &File) -> u32 {
    file.metadata().unwrap().mode() & 0o7777
}

fn xattr(name: &str, value: &[u8]) -> Xattr {
    Xattr {
        name: name.as_bytes().into(),
        value: value.into(),
    }
}

/// Returns an access control list in which user 7 may read and write, the group has the permissions `group`, and the
/// mask is `mask`.
fn acl(group: u8, mask: u8) -> Xattr {
    let entry = |tag: u8, may: u8, id: u32| [&[tag, 0, may, 0][..], &id.to_le_bytes()].concat();
    let none = u32::MAX;
    let entries = [
        entry(1, 6, none),
        entry(2, 6, 7),
        entry(4, group, none),
        entry(0x10, mask, none),
        entry(0x20, 0, none),
    ];
    xattr(
        "system.posix_acl_access",
        &[&[2, 0, 0, 0][..], &entries.concat()].concat(),
    )
}

fn set(file: &File, wanted: &WantedMetadata<'_>) -> Vec<MetadataFailure> {
    wanted
        .set(
            Permit::for_hidden(),
            Descriptor::Open(file.as_fd()),
            &ProvenKinds::default(),
        )
        .unwrap()
}

fn has_xattrs(file: &File) -> bool {
    let usable = Descriptor::Open(file.as_fd())
        .set_xattr(&Permit::for_hidden(), &acl(4, 6).name, &acl(4, 6).value)
        .is_ok();
    if !usable {
        eprintln!("skipped: no access control lists here");
    }
    usable
}

#[test]
fn a_file_gets_what_it_lacks_and_loses_what_it_is_not_to_have() {
    let file = file();
    if !has_xattrs(&file) {
        return;
    }
    Descriptor::Open(file.as_fd())
        .set_xattr(&Permit::for_hidden(), b"user.old", b"x")
        .unwrap();
    let xattrs = [acl(4, 6), xattr("user.new", b"y")];
    assert!(
        set(
            &file,
            &WantedMetadata {
                mode: 0o660,
                xattrs: &xattrs,
                ..WANTED
            }
        )
        .is_empty()
    );
    let found = Descriptor::Open(file.as_fd())
        .xattrs(MetadataKinds::ALL)
        .unwrap()
        .list;
    assert_eq!((&found[..], mode(&file)), (&xattrs[..], 0o660));
    assert!(set(&file, &WANTED).is_empty());
    let found = Descriptor::Open(file.as_fd())
        .xattrs(MetadataKinds::ALL)
        .unwrap()
        .list;
    let stat = file.metadata().unwrap();
    assert_eq!(
        (found.len(), mode(&file), stat.mtime(), stat.mtime_nsec()),
        (0, 0o640, 5, 6)
    );
}

/// With the list, a file with mode 0660 lets the group read. Without the list, the same mode lets the group write.
#[test]
fn a_list_that_makes_no_sense_gives_the_group_no_more_than_it_says() {
    let file = file();
    if !has_xattrs(&file) {
        return;
    }
    let mut bad = acl(4, 6);
    bad.value[5] = 0x40;
    let misses = set(
        &file,
        &WantedMetadata {
            mode: 0o660,
            xattrs: &[bad],
            ..WANTED
        },
    );
    assert_eq!(
        misses,
        [MetadataFailure {
            kind: MetadataKinds::ACLS,
            error: Errno::INVAL
        }]
    );
    assert_eq!(mode(&file), 0o640);
    let unknown = [Xattr {
        name: b"system.nfs4_acl".as_slice().into(),
        value: b"x".as_slice().into(),
    }];
    let misses = set(
        &file,
        &WantedMetadata {
            xattrs: &unknown,
            ..WANTED
        },
    );
    assert_eq!(
        (misses[0].kind, misses[0].error, mode(&file)),
        (MetadataKinds::ACLS, Errno::OPNOTSUPP, 0o640)
    );
}

#[test]
fn what_a_file_system_cannot_hold_is_told_and_the_rest_is_set() {
    let file = file();
    if !has_xattrs(&file) {
        return;
    }
    let many: Vec<_> = (0..30)
        .map(|n| xattr(&format!("user.{n:02}"), &[n; 60_000]))
        .collect();
    let misses = set(
        &file,
        &WantedMetadata {
            xattrs: &many,
            ..WANTED
        },
    );
    assert!(
        misses.iter().all(|miss| miss.kind == MetadataKinds::XATTRS) && misses.len() <= 1,
        "{misses:?}"
    );
    let mut found = 0;
    for n in 0..30 {
        let mut value = Vec::with_capacity(60_000);
        let name = format!("user.{n:02}");
        match rustix::fs::fgetxattr(&file, name, rustix::buffer::spare_capacity(&mut value)) {
            Ok(_) => {
                assert_eq!(value, [n; 60_000]);
                found += 1;
            }
            Err(error) => assert_eq!(error, Errno::NODATA),
        }
    }
    assert_eq!(found == many.len(), misses.is_empty(), "{found} are set");
    assert_eq!(mode(&file), 0o640);
}

#[test]
fn an_owner_is_set_and_without_it_nobody_s_rights_are_lent() {
    let file = file();
    let owned = WantedMetadata {
        mode: 0o6755,
        owner: Some(12_345),
        group: Some(23_456),
        kinds: MetadataKinds::NONE,
        ..WANTED
    };
    let misses = set(&file, &owned);
    if rustix::process::geteuid().is_root() {
        let stat = file.metadata().unwrap();
        assert_eq!(
            (stat.uid(), stat.gid(), mode(&file), misses.len()),
            (12_345, 23_456, 0o6755, 0)
        );
    } else {
        assert_eq!((misses[0].kind, mode(&file)), (MetadataKinds::OWNER, 0o755));
    }
    let nobody = WantedMetadata {
        owner: Some(Account::NO_ID),
        group: None,
        ..owned
    };
    assert_eq!(
        set(&file, &nobody),
        [MetadataFailure {
            kind: MetadataKinds::OWNER,
            error: Errno::INVAL
        }]
    );
    assert_eq!(mode(&file), 0o755);
    set(
        &file,
        &WantedMetadata {
            set_ids_need_owner: false,
            ..nobody
        },
    );
    assert_eq!(mode(&file), 0o6755);
    let denied = WantedMetadata {
        may_set_owner: false,
        owner: Some(54_321),
        ..owned
    };
    let misses = set(&file, &denied);
    assert_eq!(
        (misses[0].kind, misses[0].error, mode(&file)),
        (MetadataKinds::OWNER, Errno::PERM, 0o755)
    );
}

/// The new group may get more access from the current mode than from the final mode.
#[test]
fn what_has_just_been_given_away_is_open_to_nobody_but_its_owner() {
    let file = file();
    file.set_permissions(PermissionsExt::from_mode(0o666))
        .unwrap();
    let owned = WantedMetadata {
        owner: Some(12_345),
        group: Some(23_456),
        ..WANTED
    };
    let entry = Descriptor::Open(file.as_fd());
    let file_type = FileType::RegularFile;
    let proven = ProvenKinds::default();
    let mut setting = MetadataSetter {
        wanted: &owned,
        permit: &Permit::for_hidden(),
        entry,
        file_type,
        mode: Some(0o666),
        misses: Vec::new(),
        device: 0,
        stored_kinds: MetadataKinds::NONE,
        proven: &proven,
    };
    setting.set_owner(Ids { user: 0, group: 0 }).unwrap();
    assert_eq!(mode(&file), 0o600);
    setting.set_mode().unwrap();
    assert_eq!(mode(&file), 0o640);
}

#[test]
fn a_read_only_file_gets_attributes() {
    let file = file();
    if !has_xattrs(&file) {
        return;
    }
    file.set_permissions(PermissionsExt::from_mode(0o400))
        .unwrap();
    let wanted = WantedMetadata {
        mode: 0o400,
        xattrs: &[xattr("user.a", b"x")],
        ..WANTED
    };
    assert_eq!(as_an_ordinary_user(|| set(&file, &wanted)), []);
    assert_eq!(mode(&file), 0o400);
}

/// Sets metadata, given the kinds that the file system is known to store, and returns the failures.
fn set_where(
    file: &File,
    wanted: &WantedMetadata<'_>,
    proven: &ProvenKinds,
) -> Vec<MetadataFailure> {
    wanted
        .set(Permit::for_hidden(), Descriptor::Open(file.as_fd()), proven)
        .unwrap()
}

/// A change of only the write permission proves nothing, because vfat stores that bit but no other.
#[test]
fn a_kind_is_proven_by_a_change_that_was_kept() {
    let file = file();
    let device = file.metadata().unwrap().dev();
    let proven = ProvenKinds::default();
    let of_mode = |mode| WantedMetadata {
        mode,
        mtime: None,
        kinds: MetadataKinds::NONE,
        ..WANTED
    };
    file.set_permissions(PermissionsExt::from_mode(0o644))
        .unwrap();
    assert_eq!(set_where(&file, &of_mode(0o644), &proven), []);
    assert_eq!(set_where(&file, &of_mode(0o444), &proven), []);
    assert_eq!(proven.of(device), MetadataKinds::NONE);
    assert_eq!(set_where(&file, &of_mode(0o640), &proven), []);
    assert_eq!(proven.of(device), MetadataKinds::MODE);
    assert_eq!(set_where(&file, &WANTED, &proven), []);
    assert_eq!(
        proven.of(device),
        MetadataKinds::MODE.and(MetadataKinds::TIMES)
    );
}

/// If the owner of a file is not a member of the file's group, the kernel clears the setgid bit and reports success.
#[test]
fn a_setgid_bit_that_the_kernel_drops_is_missed() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can give up capabilities");
    }
    let file = file();
    rustix::fs::fchown(&file, None, Some(Gid::from_raw(23_456))).unwrap();
    let proven = ProvenKinds::default();
    let device = file.metadata().unwrap().dev();
    proven.prove(device, MetadataKinds::MODE);
    let misses = std::thread::scope(|scope| {
        let set = || {
            let mut own = rustix::thread::capabilities(None).unwrap();
            own.effective.remove(rustix::thread::CapabilitySet::FSETID);
            rustix::thread::set_capabilities(None, own).unwrap();
            let wanted = WantedMetadata {
                mode: 0o2755,
                kinds: MetadataKinds::NONE,
                ..WANTED
            };
            set_where(&file, &wanted, &proven)
        };
        scope.spawn(set).join().unwrap()
    });
    let expected = MetadataFailure {
        kind: MetadataKinds::MODE,
        error: MetadataFailure::NOT_STORED,
    };
    assert_eq!((misses, mode(&file)), (vec![expected], 0o755));
}
