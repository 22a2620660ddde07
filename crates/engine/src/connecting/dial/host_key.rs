//! Verification of a host's key.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zmove_transport::{
    ChannelDialer, DialError, Fingerprint, FirstKey, HostAuthority, HostPolicy, Identity,
    KnownHosts,
};

use super::Connector;
use crate::connecting::location::Remote;
use crate::connecting::settings::{Confirm, DIAL_TIMEOUT, UnknownHost};
use crate::error::ConnectError;

/// The policy for verifying a host's key.
pub(super) struct HostKey {
    pub(super) policy: HostPolicy,
    /// Time spent waiting for the user to confirm the key.
    pub(super) asked: Duration,
}

impl From<HostPolicy> for HostKey {
    fn from(policy: HostPolicy) -> Self {
        Self {
            policy,
            asked: Duration::ZERO,
        }
    }
}

impl Connector<'_> {
    /// Returns the key that the host must have, if it is configured or pinned.
    pub(crate) fn pinned_key(&self) -> Result<Option<Fingerprint>, ConnectError> {
        let Self {
            home,
            remote,
            settings,
            ..
        } = *self;
        if settings.key.is_some() {
            return Ok(settings.key);
        }
        Ok(KnownHosts::open(home)?.lookup(&remote.host, remote.port))
    }

    /// Returns the policy for the host's key: the pinned key, or a key certified by the site's authority. If there is
    /// neither, the settings decide how to treat the unknown host, as with ssh.
    pub(super) async fn host_policy(
        &self,
        identity: &Identity,
        first_key: &FirstKey,
    ) -> Result<HostKey, ConnectError> {
        let Self {
            home,
            remote,
            settings,
            ..
        } = *self;
        if let Some(key) = self.pinned_key()? {
            return Ok(HostPolicy::Pinned(key).into());
        }
        let authority = HostAuthority::load(home, &remote.host)?;
        let accept_new = || HostPolicy::AcceptNew(first_key.clone());
        if matches!(settings.unknown_host, UnknownHost::Pin) && authority.is_none() {
            return Ok(accept_new().into());
        }
        let policy = authority.map_or(HostPolicy::RefuseUnknown, HostPolicy::Vouched);
        let reach = settings.reach.clone();
        let dialled = self.with_dial_notice(Box::pin(async {
            let dialer =
                ChannelDialer::new(identity, &remote.host, remote.port, policy, reach).await?;
            dialer.dial(DIAL_TIMEOUT).await
        }));
        let (fingerprint, asked) = match dialled.await {
            Ok(vouched) => return Ok(HostPolicy::Pinned(vouched.peer()).into()),
            Err(error) => match (&error, &settings.unknown_host) {
                (DialError::UnknownHost { .. }, UnknownHost::Pin) => return Ok(accept_new().into()),
                (DialError::UnknownHost { fingerprint, .. }, UnknownHost::Ask(confirm)) => {
                    let began = Instant::now();
                    ask(Arc::clone(confirm), remote, *fingerprint).await?;
                    (*fingerprint, began.elapsed())
                }
                _ => return Err(error.into()),
            },
        };
        KnownHosts::open(home)?.pin(&remote.host, remote.port, fingerprint)?;
        Ok(HostKey {
            policy: HostPolicy::Pinned(fingerprint),
            asked,
        })
    }
}

/// Asks the user to confirm the key. The question runs on a separate thread, so that the caller can still handle an
/// interrupt.
async fn ask(
    confirm: Arc<dyn Confirm>,
    remote: &Remote,
    key: Fingerprint,
) -> Result<(), ConnectError> {
    let remote = remote.clone();
    let asked = tokio::task::spawn_blocking(move || confirm.confirm(&remote, key)).await;
    asked
        .unwrap_or_else(|panicked| Err(panicked.into()))
        .map_err(ConnectError::Unconfirmed)
}
