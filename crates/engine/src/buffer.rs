//! Request buffers and the pool that they come from.
//!
//! A buffer is page-aligned memory for the data units of one request, with headroom for a reply header, so that header
//! and data are sent in one piece. It has one owner at a time: a frontend, the table of requests in flight, or the
//! ring. A worker allocates its pool at the start; afterwards buffers only move. If a class of buffers is empty, the
//! request is carried out in smaller pieces; if all are empty, it waits. Memory use never grows with the requests of
//! clients.

/// Bytes of headroom in front of the data.
pub const HEADROOM: usize = PAGE;

const PAGE: usize = 4096;

/// Memory for the data of one request.
pub struct Buffer {
    /// Allocation. The aligned part starts at `base`: headroom, then data.
    memory: Box<[u8]>,
    base: usize,
    capacity: usize,
}

impl Buffer {
    /// Alignment of the data in bytes.
    pub const ALIGNMENT: usize = PAGE;
    /// Bytes of memory that a buffer takes beyond its capacity.
    pub const OVERHEAD: usize = HEADROOM + PAGE;

    /// Returns a zeroed buffer for `capacity` bytes of data. Pages become resident when they are first touched.
    pub fn new(capacity: usize) -> Self {
        let memory = vec![0u8; capacity + Self::OVERHEAD].into_boxed_slice();
        let base = memory.as_ptr().addr().wrapping_neg() % PAGE;
        Self { memory, base, capacity }
    }

    /// Returns the capacity for data in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the data, which is page-aligned.
    pub fn data(&self) -> &[u8] {
        let start = self.base + HEADROOM;
        &self.memory[start..start + self.capacity]
    }

    /// Returns the data for writing.
    pub fn data_mut(&mut self) -> &mut [u8] {
        let start = self.base + HEADROOM;
        &mut self.memory[start..start + self.capacity]
    }

    /// Returns the start of the data in the memory from [`Buffer::into_parts`].
    pub(crate) fn data_start(&self) -> usize {
        self.base + HEADROOM
    }

    /// Returns the parts: the memory, the start of its aligned part, and the capacity for data.
    pub(crate) fn into_parts(self) -> (Box<[u8]>, usize, usize) {
        (self.memory, self.base, self.capacity)
    }

    /// Returns a buffer made of the parts from [`Buffer::into_parts`].
    pub(crate) fn from_parts(memory: Box<[u8]>, base: usize, capacity: usize) -> Self {
        Self { memory, base, capacity }
    }

    /// Returns headroom and data as one slice; the data starts at [`HEADROOM`].
    pub fn frame(&self) -> &[u8] {
        &self.memory[self.base..self.base + HEADROOM + self.capacity]
    }

    /// Returns headroom and data as one slice for writing.
    pub fn frame_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.base..self.base + HEADROOM + self.capacity]
    }

    /// Puts `header`, at most [`HEADROOM`] bytes, directly before data byte `at`, and returns its start in the frame.
    pub fn put_header(&mut self, at: usize, header: &[u8]) -> usize {
        let start = HEADROOM + at - header.len();
        self.frame_mut()[start..start + header.len()].copy_from_slice(header);
        start
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.capacity)
    }
}

/// Number of buffers of one size in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferClass {
    /// Capacity of each in bytes.
    pub capacity: usize,
    /// Number of buffers.
    pub count: usize,
}

/// One in this many buffers of each class is reserved, and at least one: see [`BufferPool::take_unreserved`].
const RESERVED: usize = 8;

/// Buffers of a worker, allocated at the start, or each when it is first needed ([`BufferPool::on_demand`]).
pub struct BufferPool {
    /// In ascending order of capacity.
    classes: Vec<Stock>,
    /// Number of buffers from [`BufferPool::another_small`].
    others: usize,
}

/// Buffers of one class.
struct Stock {
    class: BufferClass,
    free: Vec<Buffer>,
    /// Number of buffers that were not needed so far.
    unmade: usize,
}

impl Stock {
    /// Takes a buffer unless only `left` are there.
    fn take(&mut self, left: usize) -> Option<Buffer> {
        if self.free.len() + self.unmade <= left {
            return None;
        }
        self.free.pop().or_else(|| {
            self.unmade -= 1;
            Some(Buffer::new(self.class.capacity))
        })
    }

    fn outstanding(&self) -> usize {
        self.class.count - self.free.len() - self.unmade
    }
}

impl BufferPool {
    /// Length in bytes of the largest piece of a request.
    pub const LARGEST_PIECE: usize = 1 << 20;

    /// Returns a pool for data units of `unit_len` bytes, for one of `workers` workers.
    pub fn for_worker(unit_len: usize, workers: usize) -> Self {
        Self::new(&classes_of(unit_len, workers))
    }

    /// Returns a pool as [`BufferPool::for_worker`] does, whose buffers are allocated when they are first needed: for
    /// one of many volumes, most of which are idle.
    pub fn on_demand(unit_len: usize, workers: usize) -> Self {
        Self::with_classes(&classes_of(unit_len, workers), |class| (Vec::new(), class.count))
    }

    /// Returns a pool of these classes, in any order.
    pub fn new(classes: &[BufferClass]) -> Self {
        Self::with_classes(classes, |class| ((0..class.count).map(|_| Buffer::new(class.capacity)).collect(), 0))
    }

    /// Returns a pool with the free buffers, and the number of those to make later, that `fill` returns for a class.
    fn with_classes(classes: &[BufferClass], fill: fn(&BufferClass) -> (Vec<Buffer>, usize)) -> Self {
        let mut classes = classes.to_vec();
        classes.sort_by_key(|c| c.capacity);
        let stock = |class: &BufferClass| {
            let (free, unmade) = fill(class);
            Stock { class: *class, free, unmade }
        };
        Self { classes: classes.iter().map(stock).collect(), others: 0 }
    }

    /// Returns the pool with room for the requests of this many buffers from [`BufferPool::another_small`].
    #[must_use]
    pub fn with_others(self, others: usize) -> Self {
        Self { others, ..self }
    }

    /// Returns a new buffer of the smallest class, in addition to the pool's own, for a client that finds the pool
    /// empty. Buffers of a class are interchangeable: another one of the same capacity may be given back in its place.
    pub fn another_small(&self) -> Buffer {
        Buffer::new(self.smallest())
    }

    /// Returns the capacity of a buffer of the smallest class in bytes.
    pub fn smallest(&self) -> usize {
        self.classes.first().map_or(0, |stock| stock.class.capacity)
    }

    /// Returns the total capacity of the pool's buffers in bytes.
    pub fn capacity(&self) -> usize {
        self.classes.iter().map(|stock| stock.class.capacity * stock.class.count).sum()
    }

    /// Takes a buffer for `want` bytes of data: the smallest that fits, otherwise the largest smaller one that holds
    /// `least` bytes. `None`: none is left; try again after a buffer was given back.
    pub fn take(&mut self, want: usize, least: usize) -> Option<Buffer> {
        self.take_leaving(want, least, |_| 0)
    }

    /// Takes a buffer as [`BufferPool::take`] does, for a client that already has one: the last buffers of each class
    /// are reserved for clients that have none.
    pub fn take_unreserved(&mut self, want: usize, least: usize) -> Option<Buffer> {
        self.take_leaving(want, least, |class| (class.count / RESERVED).max(1))
    }

    fn take_leaving(&mut self, want: usize, least: usize, left: fn(&BufferClass) -> usize) -> Option<Buffer> {
        let pop = |stock: &mut Stock| stock.take(left(&stock.class));
        let fits = self.classes.partition_point(|stock| stock.class.capacity < want);
        let (smaller, larger) = self.classes.split_at_mut(fits);
        let ample = larger.iter_mut().find_map(pop);
        ample.or_else(|| smaller.iter_mut().rev().filter(|stock| stock.class.capacity >= least).find_map(pop))
    }

    /// Gives a buffer back.
    pub fn give(&mut self, buffer: Buffer) {
        if let Some(stock) = self.classes.iter_mut().find(|stock| stock.class.capacity == buffer.capacity) {
            stock.free.push(buffer);
        }
    }

    /// Returns the number of buffers, in the pool or taken, including those of [`BufferPool::with_others`].
    pub fn len(&self) -> usize {
        self.classes.iter().map(|stock| stock.class.count).sum::<usize>() + self.others
    }

    /// Returns whether the pool has no buffers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of taken buffers.
    pub fn outstanding(&self) -> usize {
        self.classes.iter().map(Stock::outstanding).sum()
    }
}

/// Returns the buffers for data units of `unit_len` bytes, for one of `workers` workers.
fn classes_of(unit_len: usize, workers: usize) -> [BufferClass; 3] {
    let edges = 2 * unit_len;
    let share = |total: usize, least: usize| (total / workers.max(1)).max(least);
    [
        BufferClass { capacity: 4096 + edges, count: share(256, 64) },
        BufferClass { capacity: (128 << 10) + edges, count: share(64, 8) },
        BufferClass { capacity: BufferPool::LARGEST_PIECE + edges, count: share(20, 4) },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_page_aligned_and_a_header_stands_before_it() {
        let mut buffer = Buffer::new(5000);
        assert_eq!(buffer.data().as_ptr().addr() % PAGE, 0);
        buffer.data_mut()[7] = 9;
        let start = buffer.put_header(7, &[1, 2, 3]);
        assert_eq!(&buffer.frame()[start..start + 4], &[1, 2, 3, 9]);
    }

    #[test]
    fn pool_prefers_the_smallest_fitting_buffer_and_falls_back_to_smaller_ones() {
        let class = |capacity, count| BufferClass { capacity, count };
        let mut pool = BufferPool::new(&[class(100, 1), class(10, 2)]);
        let a = pool.take(10, 10).unwrap();
        let b = pool.take(50, 10).unwrap();
        let c = pool.take(50, 10).unwrap();
        assert_eq!([a.capacity(), b.capacity(), c.capacity()], [10, 100, 10]);
        assert!(pool.take(1, 1).is_none());
        assert_eq!(pool.outstanding(), 3);
        pool.give(c);
        assert!(pool.take(50, 11).is_none(), "a buffer too small to be of use");
        pool.give(b);
        assert_eq!(pool.take(1, 1).map(|b| b.capacity()), Some(10));
        assert_eq!(pool.take(1, 1).map(|b| b.capacity()), Some(100));
    }

    #[test]
    fn reserved_buffers_of_every_class_are_left_to_clients_without_any() {
        let class = |capacity, count| BufferClass { capacity, count };
        let mut pool = BufferPool::new(&[class(10, 17), class(100, 3)]).with_others(5);
        let mut greedy = Vec::new();
        while let Some(buffer) = pool.take_unreserved(100, 1) {
            greedy.push(buffer.capacity());
        }
        assert_eq!(greedy, [[100; 2].as_slice(), &[10; 15]].concat());
        assert_eq!(
            [100, 100, 100].map(|want| pool.take(want, 1).map(|b| b.capacity())),
            [Some(100), Some(10), Some(10)]
        );
        assert!(pool.take(1, 1).is_none());
        assert_eq!((pool.another_small().capacity(), pool.len(), pool.outstanding()), (10, 25, 20));
    }

    #[test]
    fn pool_on_demand_makes_each_buffer_once_and_no_more_than_the_other() {
        let (mut lazy, mut eager) = (BufferPool::on_demand(512, 64), BufferPool::for_worker(512, 64));
        assert_eq!((lazy.len(), lazy.capacity(), lazy.smallest()), (eager.len(), eager.capacity(), eager.smallest()));
        let unmade = |pool: &BufferPool| pool.classes.iter().map(|stock| stock.unmade).sum::<usize>();
        assert_eq!((unmade(&lazy), lazy.outstanding()), (lazy.len(), 0));
        let first = lazy.take(4096, 1).unwrap();
        lazy.give(first);
        let again = lazy.take(4096, 1).unwrap();
        assert_eq!((unmade(&lazy), lazy.outstanding()), (lazy.len() - 1, 1), "a free buffer is not used again");
        lazy.give(again);
        for (want, reserve) in [(4096, false), (4096, true), (1 << 20, true)] {
            let mut taken = [Vec::new(), Vec::new()];
            for (pool, taken) in [&mut lazy, &mut eager].into_iter().zip(&mut taken) {
                let take =
                    |pool: &mut BufferPool| if reserve { pool.take(want, 1) } else { pool.take_unreserved(want, 1) };
                taken.extend(std::iter::from_fn(|| take(pool)).map(|buffer| buffer.capacity()));
            }
            assert_eq!(taken[0], taken[1]);
        }
        assert_eq!((unmade(&lazy), lazy.outstanding()), (0, eager.outstanding()));
    }
}
