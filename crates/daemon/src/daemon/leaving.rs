//! Abandons transfers that do not end when the daemon is stopped. Each of them has a thread that waits for storage that
//! does not respond. In some cases, not even SIGKILL ends such a thread.
//!
//! **Invariant:** an abandoned transfer holds no lock, listening socket or connection, so that another daemon can start
//! although this process cannot be reaped.

use std::path::Path;
use std::time::{Duration, Instant};

use zmove_disk::{Mount, mounts};
use zmove_receiver::WriteAccess;

use super::{Daemon, Shared, moved};
use crate::event::TransferEnd;
use crate::transfers::{ActiveTransfer, PeerInfo};

/// Maximum time for all transfers to be abandoned. They do not wait for storage during this time.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

impl Daemon {
    /// Abandons the transfers that have not ended when [`serve`](Self::serve) returned. Logs each of them and releases
    /// their locks. Call this only when the process is about to end, because the threads of these transfers continue if
    /// their storage responds again.
    pub async fn abandon_transfers(&self) {
        self.shared.leaving.send_replace(true);
        let _in_time = tokio::time::timeout(LEAVE_TIMEOUT, self.shared.stopping.closed()).await;
    }
}

impl Shared {
    /// Resolves once the daemon has begun to abandon the transfers that have not ended.
    pub(super) async fn abandoned(&self) {
        let mut leaving = self.leaving.subscribe();
        // This owns the sending end, so the wait cannot fail.
        let _leaving = leaving.wait_for(|leaving| *leaving).await;
    }

    /// Logs an abandoned transfer. `access` describes the paths to which its peer may write.
    pub(super) fn abandon(
        &self,
        who: PeerInfo,
        live: &ActiveTransfer,
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
    Mount::containing(&mounts(), path)
}
