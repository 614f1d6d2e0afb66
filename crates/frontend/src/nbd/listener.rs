//! Servers whose clients have a thread each for the handshake: those of many exports, and those with TLS.

use super::descriptors;
use super::exports::{Catalog, Dispatcher, Lease, Unavailable};
use super::greeting::Greeting;
use super::mux::Limits;
use super::places::Places;
use super::relay::Relays;
use super::server::{Acceptor, Greeters, Listen, Server, ServerError, ServerOptions, Socket, bind};
use super::tls::TlsServer;
use inlock_engine::Device;
use std::sync::Arc;

/// Descriptors that a client with TLS needs: its socket, and a pair to its worker.
const DESCRIPTORS_WITH_TLS: usize = 3;

/// Accepts clients for a catalog. Stops when dropped.
pub struct ExportListener {
    listen: Listen,
    /// Dropped before the clients in their handshake are.
    _acceptor: Acceptor,
    _greeters: Greeters,
}

impl ExportListener {
    /// Listens. Clients may connect when this returns.
    ///
    /// # Errors
    /// The address is in use or cannot be listened at.
    pub fn start(
        listen: &Listen,
        catalog: Arc<dyn Catalog>,
        limits: Limits,
        tls: Option<Arc<TlsServer>>,
    ) -> Result<Self, ServerError> {
        let (socket, listen) = bind(listen)?;
        // The volumes know the threads of their clients.
        let (acceptor, greeters) = greet(socket, catalog, limits, tls, Arc::default())?;
        Ok(Self { listen, _acceptor: acceptor, _greeters: greeters })
    }

    /// Returns the address at which the server listens, with the port that was chosen.
    pub fn listen(&self) -> &Listen {
        &self.listen
    }
}

impl Server {
    /// As [`Server::start`], with TLS.
    ///
    /// # Errors
    /// The address is in use or cannot be listened at, or a thread cannot be started. Nothing is left behind then.
    pub fn start_with_tls(
        device: Arc<Device>,
        listen: &Listen,
        options: &ServerOptions,
        tls: TlsServer,
    ) -> Result<Self, ServerError> {
        let mut options = options.clone();
        options.max_connections = options.max_connections.min(descriptors::max_clients() / DESCRIPTORS_WITH_TLS).max(1);
        let limits = options.limits;
        Self::start_by(device, listen, &options, |socket, device, workers, live| {
            let relays = Arc::new(Relays::default());
            let dispatcher = Dispatcher::new(device, options.clone(), workers, live, Arc::clone(&relays));
            let catalog = One { name: options.export_name.clone(), dispatcher };
            let (acceptor, greeters) = greet(socket, Arc::new(catalog), limits, Some(Arc::new(tls)), relays)?;
            Ok((acceptor, Some(greeters)))
        })
    }
}

/// The catalog of a server with one export.
struct One {
    name: String,
    dispatcher: Arc<Dispatcher>,
}

impl Catalog for One {
    fn names(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    fn open(&self, name: &str) -> Result<Lease, Unavailable> {
        match name.is_empty() || name == self.name {
            true => self.dispatcher.lease().ok_or(Unavailable::Refused),
            false => Err(Unavailable::Unknown),
        }
    }
}

/// Accepts clients, and has a thread carry out the handshake of each. With TLS, the thread stays until its client has
/// left. `threads` counts the threads.
fn greet(
    socket: Socket,
    catalog: Arc<dyn Catalog>,
    limits: Limits,
    tls: Option<Arc<TlsServer>>,
    threads: Arc<Relays>,
) -> Result<(Acceptor, Greeters), ServerError> {
    let (stop, hangs_up) = rustix::pipe::pipe().map_err(|error| ServerError::Worker(error.into()))?;
    let (stop, greeters) = (Arc::new(stop), Greeters::new(Arc::clone(&threads), hangs_up));
    let places = Places::new();
    let acceptor = Acceptor::start(socket, move |client| {
        let greeting = Greeting::new(client, limits.handshake, Arc::clone(&stop), tls.clone(), &places);
        let (catalog, thread) = (Arc::clone(&catalog), threads.enter());
        let run = move || {
            let relay = greeting.run(&*catalog);
            drop(catalog);
            if let Some(relay) = relay {
                relay.run();
            }
            drop(thread);
        };
        // Without a thread the client is disconnected.
        let _ = std::thread::Builder::new().name("inlock-greet".into()).spawn(run);
    })?;
    Ok((acceptor, greeters))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::tls::{TlsMode, TlsOptions};
    use inlock_engine::Access;
    use inlock_engine::store::file::IoMode;
    use inlock_engine::store::memory::MemoryStore;
    use inlock_tests::certificates::Authority;

    /// There is no memory for more.
    #[test]
    fn server_with_tls_has_no_more_clients_than_it_has_descriptors_for() {
        let dir = tempfile::tempdir().unwrap();
        let certificates = Authority::with_server(&dir.path().join("a"), "server").dir().to_owned();
        let tls = TlsServer::load(&TlsOptions { mode: TlsMode::Required, certificates, verify_peer: false }).unwrap();
        let device = Arc::new(Device::raw(Arc::new(MemoryStore::new(vec![0; 4096])), Access::default()));
        let max_connections = usize::MAX;
        let options = ServerOptions { threads: 1, io: IoMode::Sync, max_connections, ..ServerOptions::default() };
        let listen = Listen::Unix(dir.path().join("socket"));
        Server::start_with_tls(device, &listen, &options, tls).unwrap().stop().unwrap();
    }
}
