//! The target as the nodes of a stand see it with `--model`: each by a mount of its own, which is a client of one
//! shared file system (`late/shared.rs`).

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::measurements::late::Late;
use crate::measurements::late::shared::{Charges, Costs, Shared};

/// All clients, until this is dropped. **Invariant:** whoever has files open there has ended before.
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

    /// Nothing is charged yet.
    pub(super) fn begin(&self) {
        self.shared.begin();
    }

    pub(super) fn charges(&self) -> Charges {
        self.shared.charges()
    }

    /// Lets all clients forget what has been removed from the target's root.
    pub(super) fn forget(&self, name: &OsStr) -> Result<()> {
        self.clients
            .iter()
            .try_for_each(|client| client.forget(name))
    }
}
