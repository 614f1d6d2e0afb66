use super::naive;
use crate::*;

#[test]
fn quick() {
    let spec = CipherSpec::AES_XTS_PLAIN64;
    for text in ["aes-xts-plain64", "aes-cbc-essiv:sha256"] {
        let spec: CipherSpec = text.parse().unwrap();
        for &key_len in spec.key_lens() {
            let key: Vec<u8> = (0..key_len).map(|i| (i * 37 + 11) as u8).collect();
            for log in 9..=16 {
                let unit = DataUnitSize::new(1 << log).unwrap();
                for kernel in XtsKernel::available() {
                    for units in [1, 3, 9, 67] {
                        let plain: Vec<u8> = (0..units * unit.bytes()).map(|i| (i * 7 + i / 256) as u8).collect();
                        let c = new_sector_cipher_on(kernel, &spec, &key, unit, true).unwrap();
                        for enc in [true, false] {
                            let mut want = plain.clone();
                            naive::run(&spec, &key, unit.bytes(), 1, 5, &mut want, enc);
                            let mut got = plain.clone();
                            if enc {
                                c.encrypt(IvNumber(5), InOut::InPlace(&mut got))
                            } else {
                                c.decrypt(IvNumber(5), InOut::InPlace(&mut got))
                            };
                            assert!(got == want, "{kernel:?} {text} {log} {units} {enc} {key_len}");
                        }
                    }
                }
            }
        }
    }
}
