{S[i,j,k] -> [i%8, j%8]}
{S[i,j,k] -> [fl(i/8), fl(j/8), i%8+j%8+k]}
