#include "textflag.h"

// func streamPages(dst, src *byte, pairs int)
TEXT ·streamPages(SB), NOSPLIT, $0-24
	MOVQ  dst+0(FP), DI
	MOVQ  src+8(FP), SI
	MOVQ  pairs+16(FP), CX
	TESTQ CX, CX
	JZ    done

pair:
	MOVQ $64, DX

line:
	PREFETCHT0 256(SI)
	PREFETCHT0 4352(SI)
	MOVOU  (SI), X0
	MOVOU  16(SI), X1
	MOVOU  32(SI), X2
	MOVOU  48(SI), X3
	MOVOU  4096(SI), X4
	MOVOU  4112(SI), X5
	MOVOU  4128(SI), X6
	MOVOU  4144(SI), X7
	MOVNTO X0, (DI)
	MOVNTO X1, 16(DI)
	MOVNTO X2, 32(DI)
	MOVNTO X3, 48(DI)
	MOVNTO X4, 4096(DI)
	MOVNTO X5, 4112(DI)
	MOVNTO X6, 4128(DI)
	MOVNTO X7, 4144(DI)
	ADDQ   $64, SI
	ADDQ   $64, DI
	DECQ   DX
	JNZ    line
	ADDQ   $4096, SI
	ADDQ   $4096, DI
	DECQ   CX
	JNZ    pair
	SFENCE

done:
	RET
