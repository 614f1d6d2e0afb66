//! HMAC: known answers on every kernel, and comparison with the `hmac` crate.

use crate::messages::HmacBatch;
use crate::sha256::Sha256;
use crate::sha512::Sha512;
use crate::testing::{noise, unhex};
use crate::{Hash, HashKernel};
use ::hmac::{Hmac, KeyInit, Mac};

const HASHES: [Hash; 2] = [Hash::Sha256, Hash::Sha512];

fn tags<const HEAD: usize>(
    (hash, kernel): (Hash, HashKernel),
    key: &[u8],
    head: impl Fn(usize) -> [u8; HEAD],
    data: &[u8],
    len: usize,
) -> Vec<[u8; 72]> {
    let mut tags = vec![[0x5a; 72]; data.len() / len];
    if hash == Hash::Sha256 {
        HmacBatch::new_on(kernel, Sha256, hash.len(), key).tags(head, data, len, &mut tags);
    } else {
        HmacBatch::new_on(kernel, Sha512::Bits512, hash.len(), key).tags(head, data, len, &mut tags);
    }
    tags
}

fn expected(hash: Hash, key: &[u8], parts: [&[u8]; 2]) -> Vec<u8> {
    fn mac<M: Mac + KeyInit>(key: &[u8], parts: [&[u8]; 2]) -> Vec<u8> {
        let mut mac = <M as KeyInit>::new_from_slice(key).unwrap();
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().to_vec()
    }
    match hash {
        Hash::Sha256 => mac::<Hmac<sha2::Sha256>>(key, parts),
        _ => mac::<Hmac<sha2::Sha512>>(key, parts),
    }
}

/// RFC 4231, sections 4.2 to 4.4, 4.7 and 4.8.
#[test]
fn hmac_of_rfc_4231() {
    let long_data = "This is a test using a larger than block-size key and a larger than block-size data. The key needs \
                     to be hashed before being used by the HMAC algorithm.";
    let rows: [(&[u8], &[u8], [&str; 2]); 5] = [
        (
            &[0x0b; 20],
            b"Hi There",
            [
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
                "87aa7cdea5ef619d4ff0b4241a1d6cb02379f4e2ce4ec2787ad0b30545e17cde
             daa833b7d6b8a702038b274eaea3f4e4be9d914eeb61f1702e696c203a126854",
            ],
        ),
        (
            b"Jefe",
            b"what do ya want for nothing?",
            [
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
                "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea250554
             9758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737",
            ],
        ),
        (
            &[0xaa; 20],
            &[0xdd; 50],
            [
                "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe",
                "fa73b0089d56a284efb0f0756c890be9b1b5dbdd8ee81a3655f83e33b2279d39
             bf3e848279a722c806b485a47e67c807b946a337bee8942674278859e13292fb",
            ],
        ),
        (
            &[0xaa; 131],
            b"Test Using Larger Than Block-Size Key - Hash Key First",
            [
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
                "80b24263c7c1a3ebb71493c1dd7be8b49b46d1f41b4aeec1121b013783f8f352
             6b56d037e05f2598bd0fd2215d6a1e5295e64f73f63f0aec8b915a985d786598",
            ],
        ),
        (
            &[0xaa; 131],
            long_data.as_bytes(),
            [
                "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2",
                "e37b6a775dc87dbaa4dfa9f96e5e3ffddebd71f8867289865df5a32d20cdc944
             b6022cac3c4982b10d5eeb55c3e4de15134676fb6de0446065c97440fa8c6a58",
            ],
        ),
    ];
    for (key, message, macs) in rows {
        for (hash, mac) in HASHES.into_iter().zip(macs) {
            for kernel in HashKernel::available(hash) {
                for count in [1, 2, 5, 8, 16, 17] {
                    let tags = tags((hash, kernel), key, |_| [], &message.repeat(count), message.len());
                    let is_known = |tag: &[u8; 72]| tag[..hash.len()] == unhex(mac);
                    assert!(tags.iter().all(is_known), "{hash} with {} of {count}", kernel.name());
                }
            }
        }
    }
}

/// Heads and messages differ, so that no lane can have the result of another one.
#[test]
fn every_kernel_computes_the_hmac_of_the_crate() {
    let noise = noise(5, 1 << 17);
    let mut compared = 0;
    for (key_len, len) in
        [(0, 1), (32, 39), (32, 40), (32, 41), (64, 512), (65, 511), (128, 103), (128, 104), (129, 105), (200, 4096)]
    {
        let key = &noise[..key_len];
        let head = |at: usize| -> [u8; 24] { noise[at * 7..][..24].try_into().unwrap() };
        for count in [1, 2, 3, 4, 7, 8, 9, 16, 23] {
            let data = &noise[1000..][..len * count];
            for hash in HASHES {
                for kernel in HashKernel::available(hash) {
                    let tags = tags((hash, kernel), key, head, data, len);
                    for (at, (message, tag)) in data.chunks(len).zip(&tags).enumerate() {
                        let name = kernel.name();
                        let expected = expected(hash, key, [&head(at), message]);
                        assert_eq!(tag[..hash.len()], expected, "{hash}, {name}: {at} of {count}, {len}");
                        assert!(tag[hash.len()..].iter().all(|byte| *byte == 0x5a), "{name}: bytes behind the MAC");
                        compared += 1;
                    }
                }
            }
        }
    }
    println!("COUNT hmac_tags {compared}");
}
