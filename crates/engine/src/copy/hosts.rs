//! The two hosts of a copy, as a session reaches them. Each host runs a daemon, or a receiver that ssh started for the
//! session.
//!
//! A receiver that ssh started has its own port and key, and ends with its ssh process. If one of the hosts is reached
//! over ssh, a copy therefore ends with the command that ordered it.

use zmove_transport::{Channel, ChannelDialer};
use zmove_wire::HostAddress;

use crate::connecting::dial::Connector;
use crate::connecting::location::Remote;
use crate::connecting::settings::DialSettings;
use crate::connecting::ssh::{self, ReceiverPurpose, SshReceiver, SshSession};
use crate::error::ConnectError;

/// Both hosts of a session.
pub(super) struct Hosts<'a> {
    pub(super) source: Host<'a>,
    pub(super) target: Host<'a>,
}

/// A host of a copy.
pub(super) struct Host<'a> {
    of: Connector<'a>,
    started: Option<Started>,
}

/// A receiver that ssh started, with the settings for dialing it.
struct Started {
    remote: Remote,
    settings: DialSettings,
    ssh: SshSession,
}

impl<'a> Hosts<'a> {
    /// Starts the receivers that need ssh. They are started one after the other, because each ssh may ask for a
    /// password.
    pub(super) async fn begin(
        source: Connector<'a>,
        target: Connector<'a>,
    ) -> Result<Self, ConnectError> {
        // Start at the target host, because the user may have to confirm its key.
        let target = Host::begin(target).await?;
        Ok(Self {
            source: Host::begin(source).await?,
            target,
        })
    }

    /// Waits for the end of the receivers that ssh started.
    pub(super) async fn end(self) {
        for Started { ssh, .. } in [self.source.started, self.target.started]
            .into_iter()
            .flatten()
        {
            ssh.end().await;
        }
    }
}

impl<'a> Host<'a> {
    async fn begin(of: Connector<'a>) -> Result<Self, ConnectError> {
        let Connector {
            remote, settings, ..
        } = of;
        let Some(login) = &remote.login else {
            return Ok(Self { of, started: None });
        };
        let SshReceiver {
            identity,
            key,
            host,
            port,
            session: ssh,
            ..
        } = ssh::start(remote, login, settings, ReceiverPurpose::Copy).await?;
        let remote = Remote {
            host,
            port,
            path: remote.path.clone(),
            login: None,
        };
        let settings = DialSettings {
            key: Some(key),
            identity: Some(identity),
            ..settings.clone()
        };
        Ok(Self {
            of,
            started: Some(Started {
                remote,
                settings,
                ssh,
            }),
        })
    }

    /// Returns the connector for dialing the host.
    pub(super) fn connector(&self) -> Connector<'_> {
        match &self.started {
            Some(Started {
                remote, settings, ..
            }) => Connector {
                remote,
                settings,
                ..self.of
            },
            None => self.of,
        }
    }

    pub(super) async fn connect_control(&self) -> Result<(Channel, ChannelDialer), ConnectError> {
        let connected = self.connector().connect_control().await;
        connected.map_err(|error| match &self.started {
            Some(Started { remote, .. }) => ConnectError::BehindSsh {
                host: remote.host.clone(),
                source: Box::new(error),
            },
            None => error,
        })
    }

    /// Returns the address at which the other host can dial this host.
    pub(super) fn place(&self) -> HostAddress {
        let Remote { host, port, .. } = self.connector().remote;
        HostAddress {
            host: host.clone(),
            port: *port,
        }
    }
}
