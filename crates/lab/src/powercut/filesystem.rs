//! The file systems under test, and how to create and mount them.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use crate::processes::run;

/// A file system with its mount options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileSystem {
    /// ext4 with default options.
    Ext4,
    /// ext4 with `data=ordered,nodelalloc`.
    Ext4Nodelalloc,
    /// XFS with default options.
    Xfs,
    /// Btrfs with default options.
    Btrfs,
}

/// A mounted file system, which is unmounted when dropped.
#[derive(Debug)]
pub(crate) struct Mounted {
    at: PathBuf,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Mounted,
    Unmounted,
}

impl FileSystem {
    /// Returns the name on the command line.
    pub(crate) fn word(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Ext4 | Self::Ext4Nodelalloc => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// Creates the file system on a device.
    pub(crate) fn make(self, node: &Path) -> Result<()> {
        let command = match self {
            // Nothing is left for background initialization, which every round would repeat.
            Self::Ext4 | Self::Ext4Nodelalloc => {
                "mkfs.ext4 -q -F -b 4096 -E nodiscard,lazy_itable_init=0,lazy_journal_init=0"
            }
            Self::Xfs => "mkfs.xfs -q -K -f",
            Self::Btrfs => "mkfs.btrfs -q -K -f",
        };
        run::line(&format!("{command} {}", node.display())).map(drop)
    }

    /// Mounts the file system. This repairs the effects of a power cut.
    pub(crate) fn mount(self, node: &Path, at: &Path) -> Result<Mounted> {
        let options = match self {
            Self::Ext4Nodelalloc => "data=ordered,nodelalloc",
            Self::Ext4 | Self::Xfs | Self::Btrfs => "defaults",
        };
        run::line(&format!(
            "mount -t {} -o {options} {} {}",
            self.kind(),
            node.display(),
            at.display()
        ))?;
        Ok(Mounted {
            at: at.to_owned(),
            state: State::Mounted,
        })
    }
}

impl Mounted {
    /// Unmounts the file system. The kernel may hold files of a killed program for a little longer.
    pub(crate) fn unmount(mut self) -> Result<()> {
        self.state = State::Unmounted;
        unmount(&self.at)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.state == State::Mounted
            && let Err(error) = unmount(&self.at)
        {
            eprintln!("zmove-lab: {error:#}");
        }
    }
}

fn unmount(at: &Path) -> Result<()> {
    let command = format!("umount {}", at.display());
    for _ in 0..TRIES_MAX {
        if run::line(&command).is_ok() {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
    run::line(&command).map(drop)
}

const TRIES_MAX: usize = 200;
const PAUSE: Duration = Duration::from_millis(20);
