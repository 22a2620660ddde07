//! The API of a runner: jobs over HTTP, as REST and as a stream of events, and the page that shows them.
//! `zmove runner --http` serves it; `docs/schema/openapi.json` describes it.
//!
//! **Invariants:** nothing is answered before the request has shown that it is the user's own ([`Token`] or the
//! socket's mode) and comes from no other site. What a client does not take costs a bounded number of bytes.

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
pub use options::{SubmitOption, Takes};
pub use routes::{description, serve};
pub use state::{Api, Host};
pub use view::{EventView, Figures, JobView, reached, tells_time_left};
