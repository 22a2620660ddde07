//! Detects file systems such as proc and sysfs, which generate the contents of a file when it is read. Such a file
//! reports length 0 or the length of a page, regardless of its contents. On some FUSE file systems, certain files have
//! generated contents and length 0.
//!
//! **Invariant:** the type of each file system is queried once, by device number.

use std::os::fd::AsFd;
use std::sync::{PoisonError, RwLock};

use rustix::fs::{FsWord, fstatfs};

/// The files of a file system whose contents may be generated on reading, so that their lengths are meaningless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeneratedFiles {
    /// No files.
    None,
    /// Files of length 0.
    Empty,
    /// All files.
    All,
}

impl GeneratedFiles {
    fn of_type(kind: FsWord) -> Self {
        match kind {
            FUSE => Self::Empty,
            kind if TYPES.contains(&kind) => Self::All,
            _ => Self::None,
        }
    }

    /// Returns whether a file of this length is among these files.
    #[must_use]
    pub fn has(self, bytes: u64) -> bool {
        match self {
            Self::None => false,
            Self::Empty => bytes == 0,
            Self::All => true,
        }
    }
}

/// The known file systems below a root.
#[derive(Debug, Default)]
pub(crate) struct GeneratedFileSystems {
    known: RwLock<Vec<(u64, GeneratedFiles)>>,
}

impl GeneratedFileSystems {
    /// Returns which files on this device have generated contents, or `None` if the device has not been queried yet.
    pub(crate) fn known(&self, device: u64) -> Option<GeneratedFiles> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let found = known.iter().find(|(of, _)| *of == device);
        found.map(|(_, generated)| *generated)
    }

    /// Returns which files on this device have generated contents. If the device has not been queried yet, queries it
    /// through `file`, an open file on the device.
    pub(crate) fn query(&self, device: u64, file: impl AsFd) -> GeneratedFiles {
        self.known(device).unwrap_or_else(|| {
            let Ok(stat) = fstatfs(file) else {
                return GeneratedFiles::None;
            };
            let generated = GeneratedFiles::of_type(stat.f_type);
            let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
            if known.len() < KNOWN_MAX {
                known.push((device, generated));
            }
            generated
        })
    }
}

/// Maximum number of devices to remember.
const KNOWN_MAX: usize = 1024;

/// The `statfs` type of FUSE file systems.
const FUSE: FsWord = 0x6573_5546;
/// The `statfs` types of file systems that generate all contents, from `linux/magic.h` or the source of the file
/// system.
const TYPES: [FsWord; 20] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x0765_5821, // resctrl
    0x7363_6673, // securityfs
    0xf97c_ff8c, // selinuxfs
    0x4341_5d53, // smackfs
    0x5a3c_69f0, // apparmorfs
    0x6265_6570, // configfs
    0xde5e_81e4, // efivarfs
    0x6165_676c, // pstore
    0xcafe_4a11, // bpf
    0x4249_4e4d, // binfmt_misc
    0x6573_5543, // fusectl
    0x6e66_7364, // nfsd
    0x6759_6969, // rpc_pipefs
    0xabba_1974, // xenfs
];

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn proc_and_sysfs_make_contents_and_disks_do_not() {
        let file_systems = GeneratedFileSystems::default();
        let home = tempfile::tempdir().unwrap();
        for (path, expected) in [
            ("/proc/version".as_ref(), GeneratedFiles::All),
            ("/sys/kernel".as_ref(), GeneratedFiles::All),
            (home.path(), GeneratedFiles::None),
        ] {
            let file = File::open(path).unwrap();
            let device = file.metadata().unwrap().dev();
            assert_eq!(file_systems.known(device), None);
            assert_eq!(file_systems.query(device, &file), expected, "{path:?}");
            assert_eq!(file_systems.known(device), Some(expected));
        }
    }
}
