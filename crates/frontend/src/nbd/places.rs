//! Places of clients in their handshake, each with a thread.
//!
//! Clients that have said nothing yet, or have not gone over to TLS that is required, have places of their own, and so
//! have those that negotiate. When a client comes and the places of its stage are taken, the one that has been idle for
//! longest is disconnected: many idle clients keep no other out. A client that waits for its export to open has no
//! place here; the catalog limits those. See docs/decisions/many-volumes.md.

use super::descriptors;
use rustix::net::Shutdown;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Clients in one stage of the handshake at a time, unless there are few descriptors.
const MAX_OF_STAGE: usize = 128;

/// Stage of a handshake that needs a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The client has not shown that it speaks the protocol, or does TLS that is required.
    New,
    Negotiating,
}

/// Places of the clients of a server.
#[derive(Debug)]
pub(super) struct Places {
    max_of_stage: usize,
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// In the order of the last progress: the first one has been idle for longest.
    taken: BTreeMap<u64, (Stage, Arc<OwnedFd>)>,
    /// Number of the last progress.
    last: u64,
    /// Clients that were disconnected, and whose threads have not ended.
    ending: usize,
}

impl State {
    /// Gives a client a place, for which the client of its stage that has been idle for longest is disconnected if
    /// there is none. Returns its number.
    fn take(&mut self, max: usize, stage: Stage, socket: Arc<OwnedFd>) -> u64 {
        let in_stage = || self.taken.iter().filter(|(_, (other, _))| *other == stage);
        if in_stage().count() >= max
            && let Some(oldest) = in_stage().next().map(|(number, _)| *number)
            && let Some((_, socket)) = self.taken.remove(&oldest)
        {
            // Wakes its thread, which finds the end of the connection.
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
            self.ending += 1;
        }
        self.last += 1;
        self.taken.insert(self.last, (stage, socket));
        self.last
    }
}

/// The place of one client, until this is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    socket: Arc<OwnedFd>,
    number: Option<u64>,
}

impl Places {
    /// Places of which both stages together use at most half of the descriptors for clients.
    pub(super) fn new() -> Arc<Self> {
        let max_of_stage = MAX_OF_STAGE.min(descriptors::max_clients() / 4).max(1);
        Arc::new(Self { max_of_stage, state: Mutex::default(), left: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a new client a place. Blocks for moments, until threads of disconnected clients have ended.
    pub(super) fn enter(self: &Arc<Self>, socket: Arc<OwnedFd>) -> Place {
        let mut state = self.lock();
        let number = Some(state.take(self.max_of_stage, Stage::New, Arc::clone(&socket)));
        while state.ending > 0 {
            state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        Place { places: Arc::clone(self), socket, number }
    }
}

impl Place {
    /// Takes note that the client has made progress. `None`: its place was needed, and it is disconnected.
    pub(super) fn advance(&mut self, stage: Stage) -> Option<()> {
        self.leave()?;
        self.number = Some(self.places.lock().take(self.places.max_of_stage, stage, Arc::clone(&self.socket)));
        Some(())
    }

    /// Gives up the place. `None`: it was needed, and the client is disconnected.
    pub(super) fn leave(&mut self) -> Option<()> {
        let Some(number) = self.number.take() else { return Some(()) };
        let mut state = self.places.lock();
        if state.taken.remove(&number).is_some() {
            return Some(());
        }
        state.ending -= 1;
        self.places.left.notify_all();
        None
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn places() -> Arc<Places> {
        Arc::new(Places { max_of_stage: MAX_OF_STAGE, state: Mutex::default(), left: Condvar::new() })
    }

    fn client(places: &Arc<Places>) -> (Place, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (places.enter(Arc::new(ours.into())), theirs)
    }

    fn is_connected((_, socket): &mut (Place, UnixStream)) -> bool {
        socket.read(&mut [0]).is_err()
    }

    #[test]
    fn client_that_has_been_idle_for_longest_makes_room_for_the_next_of_its_stage() {
        let places = places();
        let mut new: Vec<_> = (0..MAX_OF_STAGE).map(|_| client(&places)).collect();
        // The first one is idle for the shortest time now.
        new[0].0.advance(Stage::New).unwrap();
        assert!(new.iter_mut().all(is_connected));
        // One that negotiates leaves its place to another.
        new[3].0.advance(Stage::Negotiating).unwrap();
        new.push(client(&places));
        assert!(new.iter_mut().all(is_connected));
        std::thread::scope(|scope| {
            let next = scope.spawn(|| client(&places));
            // The new client comes in when the thread of the other one has ended.
            while is_connected(&mut new[1]) {
                std::thread::yield_now();
            }
            assert!(!next.is_finished(), "one thread too many");
            assert_eq!(new[1].0.advance(Stage::Negotiating), None);
            new.push(next.join().unwrap());
        });
        let connected: Vec<_> = new.iter_mut().map(is_connected).collect();
        assert_eq!(connected.iter().filter(|is_connected| !**is_connected).count(), 1);
        drop(new);
        let state = places.lock();
        assert_eq!((state.taken.len(), state.ending), (0, 0));
    }

    #[test]
    fn server_has_places_for_a_quarter_of_its_clients_in_each_stage() {
        assert_eq!(Places::new().max_of_stage, 128.min(descriptors::max_clients() / 4));
    }

    #[test]
    fn stages_take_no_places_of_each_other() {
        let places = places();
        let mut negotiating: Vec<_> = (0..MAX_OF_STAGE)
            .map(|_| {
                let mut client = client(&places);
                client.0.advance(Stage::Negotiating).unwrap();
                client
            })
            .collect();
        let mut new: Vec<_> = (0..MAX_OF_STAGE).map(|_| client(&places)).collect();
        assert!(negotiating.iter_mut().chain(&mut new).all(is_connected));
        // One that waits for its export has no place, and needs one afterwards.
        negotiating[0].0.leave().unwrap();
        new[0].0.advance(Stage::Negotiating).unwrap();
        assert!(negotiating.iter_mut().chain(&mut new).all(is_connected));
        negotiating[0].0.advance(Stage::Negotiating).unwrap();
        assert!(!is_connected(&mut negotiating[1]));
        assert!(negotiating[1].0.leave().is_none());
    }
}
