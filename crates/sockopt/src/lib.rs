//! Gets and sets socket options, leaves the session keyring, and configures the lookup of names, which have no safe
//! wrapper elsewhere.
//!
//! The options are specific to Linux; see tcp(7), socket(7) and session-keyring(7). **Invariant:** all unsafe code of
//! this crate is in `sys`, whose functions pass plain integers and bytes.
//!
//! ```
//! let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
//! let client = std::net::TcpStream::connect(listener.local_addr()?)?;
//! zmove_sockopt::open_receive_window(&client, 4 << 20)?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod info;
mod keyring;
mod resolver;
mod route;
mod sys;
mod window;

pub use info::{TcpInfo, tcp_info};
pub use keyring::leave_session_keyring;
pub use resolver::resolve_without_plugins;
pub use route::path_mtu;
pub use window::open_receive_window;
