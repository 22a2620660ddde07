//! The HTTP API of a runner: a REST interface to jobs, a stream of events, and a web page that displays jobs. `zmove
//! runner --http` serves it, and `docs/schema/openapi.json` describes it.
//!
//! **Invariants:** a request is answered only if it is proven to come from the user ([`Token`] or the mode of the
//! socket) and does not come from another site. A client that does not read its responses costs a bounded amount of
//! memory.

mod connections;
mod error;
mod hub;
mod options;
mod page;
mod problem;
mod program;
mod routes;
mod state;
mod stores;
mod view;

pub use connections::host_name::PublicName;
pub use connections::listen::{ApiListener, bind_tcp, bind_unix, socket};
pub use connections::token::Token;
pub use error::ApiError;
pub use options::{SubmitOption, ValueType};
pub use routes::{description, serve};
pub use state::{Api, Host};
pub use view::{EventView, Figures, JobView, can_estimate_time_left, current_progress};
