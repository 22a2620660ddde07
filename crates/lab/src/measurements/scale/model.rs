//! The target with `--model`. Each node has its own mount, which is a client of one shared file system
//! (`late/shared.rs`).

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::measurements::late::Late;
use crate::measurements::late::shared::{Charges, Costs, Shared};

/// All clients, which are unmounted when this value is dropped. **Invariant:** all processes with open files there have
/// ended before.
#[derive(Debug)]
pub(super) struct Model {
    shared: Arc<Shared>,
    clients: Vec<Late>,
}

impl Model {
    pub(super) fn new(costs: Costs) -> Self {
        Self {
            shared: Shared::new(costs),
            clients: Vec::new(),
        }
    }

    /// Mounts the target at `view` for one more client.
    pub(super) fn add(&mut self, view: PathBuf, target: &Path) -> Result<()> {
        let number = u32::try_from(self.clients.len()).context("too many clients")?;
        self.clients.push(Late::mount_shared(
            view,
            target,
            self.shared.client(number),
        )?);
        Ok(())
    }

    /// Resets all charges.
    pub(super) fn begin(&self) {
        self.shared.begin();
    }

    pub(super) fn charges(&self) -> Charges {
        self.shared.charges()
    }

    /// Makes all clients forget an entry that was removed from the target's root.
    pub(super) fn forget(&self, name: &OsStr) -> Result<()> {
        self.clients
            .iter()
            .try_for_each(|client| client.forget(name))
    }
}
