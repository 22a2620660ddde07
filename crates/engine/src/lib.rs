//! Transfers on this host and with other hosts. The engine connects a program to the two roles that move data, the
//! sender and the receiver. It dials, plans lanes, reconnects after losses, remembers paths, and starts receivers with
//! ssh.
//!
//! The engine prints nothing and reads no command line. Events of a session go to an
//! [`Observer`](zmove_types::Observer), other notices go to a [`Listener`], and errors are enums.
//!
//! This example copies a directory to another one on the same host:
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Instant;
//!
//! use zmove_engine::{NoListener, ReceiverConfig, SenderConfig, Sources, StartedPush, push_locally};
//! use zmove_types::NoObserver;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let home = tempfile::tempdir()?;
//! let source = home.path().join("source");
//! let target = home.path().join("target");
//! std::fs::create_dir(&source)?;
//! std::fs::write(source.join("file"), "contents")?;
//!
//! // A trailing slash stands for the contents of a directory instead of the directory itself.
//! let sources = Sources::examine(&[source.join("").into()], None, &NoListener)?;
//! let job = sources.job(target.as_os_str().as_encoded_bytes());
//! let push = StartedPush::new(job, SenderConfig::default(), None, Instant::now());
//! let runtime = tokio::runtime::Runtime::new()?;
//! let never = std::future::pending();
//! let pushing = push_locally(push, ReceiverConfig::default(), Arc::new(NoObserver), never);
//! let summary = runtime.block_on(pushing)?.summary;
//!
//! assert_eq!((summary.counters.files, summary.counters.failed), (1, 0));
//! assert_eq!(std::fs::read_to_string(target.join("file"))?, "contents");
//! # Ok(())
//! # }
//! ```
//!
//! A push to another host differs only in the last step: [`RemotePush::push`] takes the [`Remote`] that
//! [`Location::parse`] returns, and [`DialSettings`].
//!
//! **Invariant:** no setting is read from the environment, and no location of a key is guessed. The caller provides the
//! home directory.

mod backoff;
mod connecting;
mod copy;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod local;
mod notice;
mod pull;
mod push;
mod random;
mod retrying;
mod sources;

pub use backoff::{OutageStage, Outages, ParseTimeoutError, RetryAction, Timeout};
pub use connecting::dial::{
    ConnectedHost, Connector, LANES_AT_ONCE, LOCAL_RTT, LaneEnd, RATE_TARGET, Route, Transferred,
    TransportUse, lanes_for_machine,
};
pub use connecting::location::{DEFAULT_PORT, Location, Login, Remote, Start};
pub use connecting::path_memory::{PathMemory, PathRecord, Rates, Window};
pub use connecting::settings::{
    Confirm, ConfirmHelper, ConnectionMethod, DIAL_TIMEOUT, DialSettings, FarHelper, HelperOffer,
    LaterLanes, PathCheck, PortRange, SshSettings, UnknownHost,
};
pub use connecting::ssh::{RECEIVE_REQUEST_BYTES_MAX, ReceiveReply, ReceiveRequest};
pub use copy::{OnInterrupt, RemoteCopy, copy_result, end_copy, read_receipt};
pub use error::{
    BootstrapError, BoxError, Causes, ConnectError, ConnectFault, LocationError, OverlapError,
    PullError, PushError, RemoteOutput, SourcesError, SshError, SshMessageError,
};
pub use local::{OverlapCheck, clean_locally, push_locally};
pub use notice::{Listener, NoListener, Notice};
pub use pull::{RemotePull, RemoteSources};
pub use push::{JobFuture, RemotePush, StartedPush};
pub use random::{fresh_transfer, random};
pub use retrying::RetryPolicy;
pub use sources::Sources;
pub use zmove_receiver::ReceiverConfig;
pub use zmove_sender::{LOSS_TOLERANT, PushJob, SenderConfig, SessionProgress, Summary};
