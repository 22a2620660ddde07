//! The setup that all rounds of one worker share: a device, a formatted image for it, keys, and directories for trees.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::device::Device;
use super::filesystem::{FileSystem, Mounted};
use super::image::{BLOCK_BYTES, Image};
use crate::processes::groups::Group;
use crate::processes::session::Session;
use crate::torture::programs::{CLIENT_HOME, DAEMON_HOME, Place, Running};

/// The setup of one worker.
#[derive(Debug)]
pub(crate) struct Stand {
    pub(crate) file_system: FileSystem,
    pub(crate) zmove: String,
    pub(crate) device: Device,
    /// The formatted file system with an empty target.
    template: Image,
    /// The mount point.
    pub(crate) mount: PathBuf,
    /// A directory in memory, with a subdirectory for each round.
    pub(crate) scratch: PathBuf,
    /// The keys, which are created once. Each round starts with a copy.
    keys: PathBuf,
    group: Group,
}

impl Stand {
    /// Sets up the worker `number` of a session. `memory` is the mount point of the session's file system in memory.
    pub(crate) fn set_up(
        session: &Session,
        memory: &Path,
        number: usize,
        file_system: FileSystem,
        zmove: &str,
    ) -> Result<Self> {
        let name = format!("{}-{number}", file_system.word());
        let mount = session.subdirectory(&format!("mount-{name}"))?;
        let scratch = memory.join(&name);
        let keys = scratch.join("keys");
        fs::create_dir_all(&keys)
            .with_context(|| format!("failed to create {}", keys.display()))?;
        let device = Device::open(
            &session.directory().join(format!("device-{name}")),
            Image::blank(BLOCKS),
        )?;
        file_system.make(&device.node()?)?;
        let mounted = file_system.mount(&device.node()?, &mount)?;
        let target = mount.join(TARGET);
        fs::create_dir(&target).context("failed to create the target")?;
        let place = Place::prepare(zmove, &keys, &target, &["--write"])?;
        // Creates the daemon's own key, so that the rounds need not create it.
        place
            .command(DAEMON_HOME)
            .args(["key", "show"])
            .output()
            .context("failed to make a key")?;
        mounted.unmount()?;
        let template = device.image();
        let group = Group::create(session.id(), &name)?;
        Ok(Self {
            file_system,
            zmove: zmove.to_owned(),
            device,
            template,
            mount,
            scratch,
            keys,
            group,
        })
    }

    /// Returns the target of all pushes.
    pub(crate) fn target(&self) -> PathBuf {
        self.mount.join(TARGET)
    }

    /// Mounts a newly formatted file system.
    pub(crate) fn mount_fresh(&self) -> Result<Mounted> {
        self.device.insert(self.template.clone())?;
        self.mount_again()
    }

    /// Mounts the current contents of the device.
    pub(crate) fn mount_again(&self) -> Result<Mounted> {
        self.file_system.mount(&self.device.node()?, &self.mount)
    }

    /// Copies the keys to the directory `homes`, and sets up a place in `directory` with these home directories.
    pub(crate) fn place(&self, directory: &Path, homes: &Path) -> Result<Place> {
        for home in [CLIENT_HOME, DAEMON_HOME] {
            copy_directory(&self.keys.join(home), &homes.join(home))?;
            let link = directory.join(home);
            if !link.exists() {
                std::os::unix::fs::symlink(homes.join(home), &link)
                    .with_context(|| format!("failed to link {}", link.display()))?;
            }
        }
        Ok(Place {
            zmove: self.zmove.clone(),
            directory: directory.to_owned(),
        })
    }

    /// Moves a program into the lab's control group, so that it ends with the session in any case.
    pub(crate) fn adopt(&self, program: &Running) -> Result<()> {
        let tied = fs::write(
            self.group.path().join("cgroup.procs"),
            program.id().to_string(),
        );
        // The program may have ended already.
        if tied
            .as_ref()
            .is_err_and(|error| error.raw_os_error() != Some(NO_SUCH_PROCESS))
        {
            tied.context("failed to move a program into the control group")?;
        }
        Ok(())
    }
}

fn copy_directory(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("failed to copy {}", from.display());
    fs::create_dir_all(to).with_context(failed)?;
    for entry in fs::read_dir(from).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let place = to.join(entry.file_name());
        if entry.file_type().with_context(failed)?.is_dir() {
            copy_directory(&entry.path(), &place)?;
        } else {
            fs::copy(entry.path(), place).with_context(failed)?;
        }
    }
    fs::set_permissions(to, fs::metadata(from).with_context(failed)?.permissions())
        .with_context(failed)
}

/// Size of the device in blocks: 512 MiB, which is more than the minimum of XFS and Btrfs.
const BLOCKS: usize = (512 << 20) / BLOCK_BYTES;
const TARGET: &str = "target";
const NO_SUCH_PROCESS: i32 = 3;
