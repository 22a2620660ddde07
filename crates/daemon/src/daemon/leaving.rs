//! Transfers that do not end when the daemon is stopped: the storage that a thread of theirs waits for does not answer,
//! perhaps not even to SIGKILL.
//!
//! **Invariant:** a transfer that is left behind holds no lock, no listening socket and no connection any more, so that
//! another daemon can take its place although this process cannot be reaped.

use std::path::Path;
use std::time::{Duration, Instant};

use zmove_disk::{Mount, mounts};
use zmove_receiver::WriteAccess;

use super::{Daemon, Shared, moved};
use crate::event::TransferEnd;
use crate::transfers::{Live, Who};

/// How long it may take to leave transfers behind, which waits for nothing.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

impl Daemon {
    /// Leaves transfers behind that have not ended when [`serve`](Self::serve) returned, and logs each of them. Their
    /// locks are released. To be called when the process is about to end, since their threads go on if their storage
    /// answers after all.
    pub async fn leave_transfers(&self) {
        self.shared.leaving.send_replace(true);
        let _in_time = tokio::time::timeout(LEAVE_TIMEOUT, self.shared.stopping.closed()).await;
    }
}

impl Shared {
    /// Resolves when transfers are left behind.
    pub(super) async fn leaves(&self) {
        let mut leaving = self.leaving.subscribe();
        // This owns the sending end, so the wait ends no other way.
        let _leaving = leaving.wait_for(|leaving| *leaving).await;
    }

    /// Logs a transfer that is left behind; `access` is what its peer may write to.
    pub(super) fn leave(
        &self,
        who: Who,
        live: &Live,
        started: Instant,
        access: Option<&WriteAccess>,
    ) {
        let moved = moved(&live.meter, started.elapsed());
        let path = access
            .zip(moved.target.as_deref())
            .and_then(|(access, target)| access.path_of(target));
        let mount = path.and_then(|path| mount_around(&path));
        self.log_end(who, moved, TransferEnd::LeftBehind(mount));
    }
}

fn mount_around(path: &Path) -> Option<Mount> {
    Mount::around(&mounts(), path)
}
